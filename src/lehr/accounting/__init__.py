"""Counting: from what was done to the records to ε.

- ``events``, ``claims``, ``ledger``: what was done, what is claimed about it, and its durable record
- ``accountant``: the smallest valid bound of all accountants, and ε after every step of a run
- ``pld``: privacy loss distributions, the default; one step is in ``privacy_loss``, their sum in ``composition``
- ``rdp``: Rényi divergences with two conversions, also for sampling without replacement and repeated selection
- ``closed_forms``: Gaussian noise without sampling, and two estimates that are shown and never used
- ``levels``: schedules of very many noise levels, counted at fewer
- ``calibration``: the noise, sample or steps with which a run stays within a target ε
- ``filter``: composition for runs that are chosen after seeing earlier ones
"""

from __future__ import annotations

from lehr.accounting.accountant import (
    ACCOUNTANTS,
    Accountant,
    Answer,
    Bound,
    EpsilonCurve,
    answers,
    bound,
    claim,
    smallest_of,
    version,
)
from lehr.accounting.filter import RenyiFilter

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Answer",
    "Bound",
    "EpsilonCurve",
    "RenyiFilter",
    "answers",
    "bound",
    "claim",
    "smallest_of",
    "version",
]
