"""Integrations: private training with code that already exists.

- ``opacus``: Opacus's names; change the import, keep the loop
- ``lightning``: a callback
- ``transformers``: a trainer
- ``sklearn``: a classifier
- ``loggers``: callbacks for experiment trackers

Lightning and transformers share ``external_loop``; ``record_independence`` checks that a loop keeps its records apart.
"""

__all__ = ["lightning", "loggers", "opacus", "sklearn", "transformers"]
