"""Games: attacks on the real code, to be held against the ε that is claimed for it.

In each, records are planted whose presence somebody then has to tell from what was released. The sampler, the engine,
the clip, the noise and the loop are those that train.

- ``overheard``: the noise of a method with somebody who listens
- ``staging``: a run of the real loop, in a folder that is thrown away
- ``canaries``: records that are as loud as a clip allows, each in a direction of its own
- ``step_game``: every released sum is seen, of rejected candidates too
- ``every_method``: the same on every method, at one ε
"""
