"""Plans looked at by their total amount of noise, each counted once."""

from __future__ import annotations

from functools import cache

from lehr.planning.plan import Plan
from lehr.planning.tan import TanOutlook, tan_outlook

CLEAR = Plan(noise_multiplier=4.0, expected_batch_size=400, records=2000, steps=100, delta=1e-5)
BEHIND = Plan(noise_multiplier=0.9, expected_batch_size=50, records=2000, steps=100, delta=1e-5)
FULL = Plan(noise_multiplier=4.0, expected_batch_size=50, records=50, steps=1, delta=1e-5)


@cache
def of(plan: Plan) -> TanOutlook:
    return tan_outlook(plan, step_factors=(1.0,))
