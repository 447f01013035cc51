"""A search for good settings: what is varied, a study of trials that survives any crash, and its winner.

- ``space``: what is varied, in ``dimension``s; ``applying`` puts it into a configuration, ``defaults`` has the usual
- ``asked``: a file that asks for a search; ``checking`` tries all that it names before the first trial
- ``terms``: what a search may do with its records
- ``study``: the trials, kept in a database (``storage``) by Optuna; ``claiming`` gives each of them to one process,
  ``samplers`` says what is tried next, by its ``names``, and ``objective`` trains one
- ``finishing``: what is left of it, with the ``winner`` as a configuration, which ``toml_text`` writes
"""
