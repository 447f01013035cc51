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

import warnings
from functools import lru_cache

from lehr.errors import InvalidValue
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulation_words
from lehr.reports.rounding import at_most
from lehr.run_shape import PRIVATE

MOST_DELTA = 0.01
MOST_RECORDS_EXPOSED = 10  # δ · records is how many records δ alone allows to be published, on average


def why_nothing(plan: Plan, *, declared: str) -> str | None:
    """Why nothing is promised by a run of this plan, whatever is proven about its noise; None where it may be."""
    if plan.simulates is not None:
        return f"{simulation_words(plan)}, and its own ε is {at_most(_epsilon(plan))}"
    if declared != PRIVATE:
        return f"the records that it is trained on were declared {declared}"
    return why_delta_is_too_large(plan.delta, records=plan.records)


def largest_delta(records: int) -> float:
    """The largest δ that is certified for so many records. Why: docs/certificate.md.

    >>> largest_delta(60_000), largest_delta(50)
    (0.00016666666666666666, 0.01)
    """
    return min(MOST_DELTA, MOST_RECORDS_EXPOSED / records)


def why_delta_is_too_large(delta: float, *, records: int) -> str | None:
    """Why nothing is certified at this δ for so many records; None where something may be."""
    if delta <= largest_delta(records):
        return None
    return f"δ = {delta:g} is above {largest_delta(records):.3g}, the largest that is certified for {records:,} records"


def delta_caution(delta: float, *, records: int) -> str | None:
    """What to say of a δ of one over the number of records or more."""
    if delta * records < 1:
        return None
    return (
        f"δ = {delta:g} for {records:,} records allows {delta * records:.3g} of them to be published, on average; "
        f"choose one well below {1 / records:.3g}"
    )


def check_delta(delta: float, *, records: int, is_certified: bool) -> None:
    """Warn from δ = 1 / records on; where a certificate is asked for, refuse a δ that is too large for one."""
    if is_certified and why_delta_is_too_large(delta, records=records) is not None:
        allowed = f"at most {largest_delta(records):.3g} for a certificate about {records:,} records"
        raise InvalidValue("delta", allowed=allowed, given=delta)
    if (caution := delta_caution(delta, records=records)) is not None:
        warnings.warn(caution, stacklevel=3)


@lru_cache(maxsize=16)  # counting takes its time, and the run, its page and its card ask for the same
def _epsilon(plan: Plan) -> float:
    return plan.bound().epsilon
