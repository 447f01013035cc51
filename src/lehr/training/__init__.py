"""The door to training: ``fit``.

- ``fit``: from a model, records and an ε to a run
- ``given_records``: whatever was handed over as data, as records that were looked at
- ``public_plan``: sane numbers where none are given
- ``engines``: the gradient engine, its physical batch, and what to do where nothing can be compiled
- ``describing``: config.json
- ``trying``: what can be found out before anything is spent
- ``paying``: the budget of a data set as a run uses it
- ``ending``: weights, certificate and report of a run that is over
"""
