"""Acceptance: whether a candidate becomes the next weights. Each candidate is charged, accepted or not.

- ``always``: every candidate is
- ``annealed``: by simulated annealing over a public energy, with its proof beside it
"""
