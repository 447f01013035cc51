"""Games: attacks on the real code, to be held against the ε that is claimed for it.

In each, records are planted whose presence somebody then has to tell from what was released. The sampler, the engine,
the clip, the noise and the loop are those that train. Each is played by one function, which returns an ``Audit``:

    step_game.attack(method, plan)                                          what ``lehr audit`` plays
    neighbours.attack(model, private, record, method=..., plan=...)         any record of yours, one step
    one_run.attack(model, private, canaries, method=..., plan=...)          one whole training
    final_model.attack(model, members, others, claimed_epsilon=...)         a finished model
    recording.compare(model, private, place, method=..., plan=...)          no bound: two runs side by side

Their parts:

- ``overheard``: the noise of a method with somebody who listens
- ``staging``: a run of the real loop, in a folder that is thrown away
- ``canaries``: records that are as loud as a clip allows, each in a direction of its own
- ``likelihood``: how much likelier a sum is with a record than without it
- ``private_methods``: only a method with noise has a claim
- ``step_game``: every released sum is seen, of rejected candidates too
- ``every_method``: the same on every method, at one ε
- ``subjects``: what an audit is about, from a run, a configuration or a name
- ``neighbours``: one step, with a record and without it, many times over
- ``one_run``: canaries among the records of one whole training, guessed at in the end; ``guessing`` is how
- ``final_model``: the final model alone, by its losses
- ``recording``: two runs with the same randomness, one record apart, compared in all that must be the same, by
  ``recorded_slots`` and ``recorded_randomness``
"""
