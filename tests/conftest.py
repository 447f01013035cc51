"""Settings that hold for every test."""

from __future__ import annotations

from hypothesis import settings

# The time of one example says more about the machine than about the code.
settings.register_profile("lehr", deadline=None, print_blob=True)
settings.load_profile("lehr")
