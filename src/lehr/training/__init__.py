"""The door to training: ``fit``.

- ``fit``: from a model, records and an ε to a run
- ``records``: the records of a run, checked
- ``evaluation_plan``: which records are scored on, what that costs, and which ones acceptance looks at
- ``public_plan``: sane numbers where none are given
- ``options``: settings that are neither the plan's nor the method's
- ``input_pipeline``: what the network sees of a record
- ``engines``: the gradient engine, and what can be found out before anything is spent
- ``training_run``: a run that is decided, checked, begun or resumed, and trained
- ``earlier_fits``: fits of this process on the same records, after which settings are no longer fixed
- ``describing``: config.json
- ``ending``: weights, certificate and report of a run that is over
"""
