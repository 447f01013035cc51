"""Claims that an attack refutes, each a module to be run: ``python -m examples.refutations.two_tails``.

docs/published_claims.md explains them.
"""
