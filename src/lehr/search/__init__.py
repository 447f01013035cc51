"""A search for good settings: what is varied, a study of trials that survives any crash, and its winner.

- ``space``: what is varied, of ``dimension``s; ``applying`` puts it into a configuration
- ``asked``: a file that asks for a search; ``checking`` tries all that it names before the first trial
- ``terms``: what a search may do with its records, and what of it may be seen
- ``study``: the trials, kept in a database by Optuna; ``claiming`` gives each of them to one process, ``samplers``
  says what is tried next, ``objective`` trains one
- ``winner``: the best trial as a configuration, written by ``toml_text``; ``telling`` says how it went
"""
