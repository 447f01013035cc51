"""The door to training: ``fit``.

- ``fit``: from a model, records and an ε to a run
- ``given_records``: whatever was handed over as data, as records that were looked at
- ``public_plan``: sane numbers where none are given
- ``engines``: the gradient engine, its physical batch, and what to do where nothing can be compiled
- ``describing``: config.json
- ``ending``: weights, certificate and report of a run that is over
"""
