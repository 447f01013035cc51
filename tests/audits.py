"""Audits written by hand: one that a claim of 3 survives, and others made from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lehr.auditing import Audit, Check, LowerBound
from lehr.auditing.bounds import GAUSSIAN_TRADEOFF

DECISIVE = LowerBound(
    epsilon=2.612345678, delta=1e-5, confidence=0.95, by="Gaussian trade-off", assumes=(GAUSSIAN_TRADEOFF,)
)
ALONE = LowerBound(epsilon=1.0, delta=1e-5, confidence=0.95, by="Clopper-Pearson")
NOISE = Check(statement="the noise is as large as it is said to be", p_value=0.4)
HOLDING = Audit(
    subject="dpsgd",
    attack="every step is seen",
    claimed_epsilon=3.0,
    delta=1e-5,
    bounds=(DECISIVE, ALONE),
    members=8000,
    others=7000,
    runs=2,
    steps=400,
    roc=((0.0, 0.0), (0.25, 0.5), (1.0, 1.0)),
    audited_on="2026-01-31",
    library_version="0.1.0",
    checks=(NOISE,),
)
REFUTED = replace(HOLDING, claimed_epsilon=2.5)
SUSPICIOUS = replace(HOLDING, checks=(replace(NOISE, p_value=1e-9),))
PRIVATE = replace(HOLDING, is_private=True)
NOTHING_SHOWN = replace(HOLDING, bounds=(replace(DECISIVE, epsilon=0.0),))


def showing(epsilon: float, **changed: Any) -> Audit:
    """An audit whose decisive bound is this one."""
    bounds = (replace(DECISIVE, epsilon=epsilon), replace(ALONE, epsilon=0.0))
    return replace(HOLDING, bounds=bounds, **changed)
