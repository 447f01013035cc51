"""Attacks on the real code, to be compared with the ε that is claimed for it.

Each attack plants records and infers from what was released whether they were there. The sampler, the engine, the
clipping, the noise and the loop are the ones that train. Each is one function that returns an ``Audit``:

    step_attack.attack(method, plan)                                        every released sum; ``lehr audit`` runs this
    neighbours.attack(model, private, record, method=..., plan=...)         any record of yours, one step
    one_run.attack(model, private, canaries, method=..., plan=...)          one whole training
    final_model.attack(model, members, others, claimed_epsilon=...)         a finished model
    recording.compare(model, private, index, method=..., plan=...)          no bound: two runs, one record apart

``canaries`` makes records whose gradients are as large as the clipping allows, ``subjects`` finds the method and the
plan that an audit is about, and ``harness`` has what the attacks share.
"""

__all__ = ["canaries", "final_model", "neighbours", "one_run", "recording", "step_attack", "subjects"]
