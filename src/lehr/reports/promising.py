"""Which runs promise nothing to anybody, whatever is proven about their noise, and why.

>>> from lehr.planning.simulation import simulate
>>> plan = Plan(noise_multiplier=2.0, expected_batch_size=256, records=1464, steps=4, delta=1e-4)
>>> print(why_nothing(plan, declared="private"))
None
>>> why_nothing(plan, declared="public")
'the records that it is trained on were declared public'
>>> print(why_nothing(simulate(plan, expected_batch_size=32), declared="public"))
it is a simulation of batches of 256 at noise multiplier 2 by batches of 32 at 0.25, and its own ε is 18.11
"""

from __future__ import annotations

from functools import lru_cache

from lehr.planning.plan import Plan
from lehr.planning.simulation import simulation_words
from lehr.reports.rounding import at_most
from lehr.run_shape import PRIVATE


def why_nothing(plan: Plan, *, declared: str) -> str | None:
    """Why nothing is promised by a run of this plan, whatever is proven about its noise; None where it may be."""
    if plan.simulates is not None:
        return f"{simulation_words(plan)}, and its own ε is {at_most(_epsilon(plan))}"
    return None if declared == PRIVATE else f"the records that it is trained on were declared {declared}"


@lru_cache(maxsize=16)  # counting takes its time, and the run, its page and its card ask for the same
def _epsilon(plan: Plan) -> float:
    return plan.bound().epsilon
