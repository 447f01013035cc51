"""Certificates and released models.

- ``guarantee``: an (ε, δ) in words and as JSON, and which runs have none
- ``certificate``: the certificate, its JSON file and its text
- ``checking``, ``issuing``: recompute every number of a certificate from its events; issue one that passes
- ``run_reading``: the public content of a run's folder
- ``release``, ``released_model``: from a run to a model that may be handed out, and how it is used
"""

__all__ = ["certificate", "checking", "issuing", "release", "released_model", "run_reading"]
