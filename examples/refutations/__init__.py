"""Claims that an attack refutes, each a module to be run: ``python -m examples.refutations.accepted_only``.

docs/refutations.md explains them.
"""
