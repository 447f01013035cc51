"""Counting: from what was done to the records to ε.

- ``accountant``: one interface, and the smallest valid bound of all accountants
- ``rdp``: Rényi divergences with two conversions, also for sampling without replacement and repeated selection
- ``pld``: privacy loss distributions, tight, the default. Its parts: ``gaussian_steps`` (which events),
  ``gaussian_mechanism`` (no sampling), ``privacy_loss`` (one step), ``window`` (where to look), ``tilted``
  (composition)
- ``randomised_response``: the worst of all mechanisms that are private without a δ, for both
- ``levels``: schedules of very many noise levels, counted at fewer, for both
- ``gdp``, ``tan``: estimates, shown and never used
- ``calibration``: any three of four numbers give the fourth; ``last_within`` is its search
- ``running``: ε after every step of a run
- ``filter``: composition for runs that are chosen after seeing earlier ones
"""

from __future__ import annotations

from lehr.accounting.accountant import (
    ACCOUNTANTS,
    Accountant,
    Answer,
    Bound,
    PassedOver,
    answers,
    bound,
    claim,
    smallest_of,
    version,
)
from lehr.accounting.calibration import Setting, calibrate
from lehr.accounting.filter import RenyiFilter
from lehr.accounting.running import EpsilonCurve

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Answer",
    "Bound",
    "EpsilonCurve",
    "PassedOver",
    "RenyiFilter",
    "Setting",
    "answers",
    "bound",
    "calibrate",
    "claim",
    "smallest_of",
    "version",
]
