"""``lehr.fit``, from its keywords to the finished run.

- ``fit``: the function
- ``prepare``: network, method and plan from a ``RunConfig``; ``public_plan``: defaults for missing numbers
- ``records``: the records, checked and preprocessed
- ``evaluation_plan``: how a run is evaluated, and what that costs
- ``engines``: the gradient engine, and checks of the model
- ``training_run``: a run that is decided, then trained
- ``describing``: models and methods in config.json
- ``ending``: certificate and report
- ``earlier_fits``: detects settings that were chosen by earlier fits on the same records
"""
