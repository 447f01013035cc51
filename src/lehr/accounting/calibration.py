"""Calibration: the least noise, the largest sample or the most steps with which a run stays within a target ε.

>>> from lehr.accounting.events import Gaussian, PoissonSampled, Repeated
>>> step = PoissonSampled(512 / 60_000, Gaussian(1.23))
>>> largest_steps(lambda steps: Repeated(step, steps), Target(3.0, 1e-5))
7245

A result never overshoots the target, by the same ``bound`` that will later be charged, and is within 0.1 % of it; for
steps it is the largest count that does not overshoot. ``last_within`` is the search behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lehr import validate
from lehr.accounting.accountant import ACCOUNTANTS, bound
from lehr.accounting.events import Adjacency, Event
from lehr.accounting.pld import PLD
from lehr.errors import AccountantFailed, InvalidValue, Unreachable, UnsupportedEvent

OUT_OF_SIGHT = 30.0  # stands for the logarithm of a ratio of zero or infinity
SMALLEST_NOISE_MULTIPLIER, LARGEST_NOISE_MULTIPLIER = 0.05, 1e7
SMALLEST_SAMPLING_PROBABILITY = 1e-10
LARGEST_STEPS = 10**8

_CLOSE_ENOUGH = 3e-4  # of the logarithm below the limit
_MOST_TRIES = 120


def last_within(
    log_ratio: Callable[[float], float], *, safe_end: float, other_end: float, start: float, whole: bool = False
) -> float | None:
    """The last value within the limit, to 0.03 % of the limit or, if ``whole``, to the unit; none if there is none.

    ``log_ratio`` is the logarithm of a rising quantity over its limit, smooth in the logarithm of the value. The value
    returned has itself been evaluated and found within: rounding can make the search stop early, never overshoot.

    >>> last_within(lambda value: math.log(value / 50), safe_end=1, other_end=10**6, start=1000, whole=True)
    50.0
    """
    ratio_at = cache(log_ratio)
    is_start_within = ratio_at(start) <= 0
    end = other_end if is_start_within else safe_end
    before = value = start
    distance = math.copysign(1.0, end - start)  # of logarithms; it doubles until the limit is crossed
    while (ratio_at(value) <= 0) == is_start_within:
        if value == end:
            return other_end if is_start_within else None
        before, value = value, value * math.exp(distance)
        value = float(round(value)) if whole else value
        value = end if (end - value) * distance <= 0 else value
        distance *= 2
    inside, outside = (before, value) if is_start_within else (value, before)
    return _narrow(ratio_at, inside, outside, whole)


def _narrow(ratio_at: Callable[[float], float], inside: float, outside: float, whole: bool) -> float:
    """Regula falsi with the Illinois rule: an end that stays twice loses half of its pull, so that both ends move."""
    aim = 0.0 if whole else _CLOSE_ENOUGH / 2  # a little inside, so that a good guess ends the search
    below, above = -ratio_at(inside) - aim, ratio_at(outside) + aim
    was_inside: bool | None = None
    for attempt in range(_MOST_TRIES):
        if _is_done(ratio_at(inside), inside, outside, whole):
            break
        share = 0.5 if attempt % 5 == 4 else below / (above + below)
        middle = inside * (outside / inside) ** min(max(share, 0.01), 0.99)
        if whole:
            low, high = sorted((inside, outside))
            middle = min(max(float(round(middle)), low + 1), high - 1)
        is_inside = ratio_at(middle) <= 0
        if is_inside:
            inside, below = middle, -ratio_at(middle) - aim
            above = above / 2 if was_inside is True else above
        else:
            outside, above = middle, ratio_at(middle) + aim
            below = below / 2 if was_inside is False else below
        was_inside = is_inside
    return inside


def _is_done(log_ratio: float, inside: float, outside: float, whole: bool) -> bool:
    if whole:
        return abs(outside - inside) <= 1
    return log_ratio >= -_CLOSE_ENOUGH or math.isclose(inside, outside, rel_tol=1e-12)


@dataclass(frozen=True, slots=True)
class Target:
    """What a run may cost, by the smallest bound or by one accountant alone."""

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
    accountant: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validate.positive(epsilon=self.epsilon))
        object.__setattr__(self, "delta", validate.delta(delta=self.delta))

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:g} at delta {self.delta:g}"

    def log_ratio(self, event: Event) -> float:
        """log(ε of the event / ε of the target)."""
        if self.accountant is None:
            spent = bound(event, delta=self.delta, adjacency=self.adjacency).epsilon
        else:
            accountant = ACCOUNTANTS[validate.one_of(ACCOUNTANTS, accountant=self.accountant)]
            spent = accountant.epsilon(event, delta=self.delta, adjacency=self.adjacency)
        if spent in (0, math.inf):
            return OUT_OF_SIGHT if spent else -OUT_OF_SIGHT
        return math.log(spent / self.epsilon)


def _last_within_target(run_at: Callable[[float], Event], target: Target, **search: Any) -> float | None:
    """``last_within`` by the smallest bound of all accountants.

    Rényi divergences cost most of the time, and are hardly ever the smallest bound. So the search first asks PLD alone.
    What it finds is the result if the smallest bound is as close to the target.
    """
    if target.accountant is None and not search.get("whole"):
        by_pld = replace(target, accountant=PLD.name)
        with suppress(UnsupportedEvent, AccountantFailed):
            found = last_within(lambda value: by_pld.log_ratio(run_at(value)), **search)
            if found is not None and -_CLOSE_ENOUGH <= target.log_ratio(run_at(found)) <= 0:
                return found
    return last_within(lambda value: target.log_ratio(run_at(value)), **search)


def smallest_noise_multiplier(run_at: Callable[[float], Event], target: Target) -> float:
    """The least noise with which the run stays within the target; ``run_at`` gives the run at a noise multiplier."""
    sigma = _last_within_target(
        run_at,
        target,
        safe_end=LARGEST_NOISE_MULTIPLIER,
        other_end=SMALLEST_NOISE_MULTIPLIER,
        start=1.0,
    )
    if sigma is None:
        raise Unreachable(f"{target} is passed even with a noise multiplier of {LARGEST_NOISE_MULTIPLIER:g}")
    if sigma == SMALLEST_NOISE_MULTIPLIER:
        raise Unreachable(f"{target} is not used up even by a noise multiplier of {sigma:g}")
    return sigma


def largest_sample(
    run_at: Callable[[float], Event], target: Target, *, smallest: float, largest: float, whole: bool = False
) -> float:
    """The largest sample, as a probability or a number of records, with which the run stays within the target."""
    sample = _last_within_target(
        run_at,
        target,
        safe_end=smallest,
        other_end=largest,
        start=max(smallest, largest // 100 if whole else largest / 100),
        whole=whole,
    )
    if sample is None:
        raise Unreachable(f"{target} is passed even by the smallest sample, {smallest:g} of {largest:g}")
    return sample


def largest_steps(run_at: Callable[[int], Event], target: Target) -> int:
    """The largest number of steps that stays within the target; ``run_at`` gives the run of so many steps."""
    steps = last_within(
        lambda count: target.log_ratio(run_at(int(count))),
        safe_end=1,
        other_end=LARGEST_STEPS,
        start=1000,
        whole=True,
    )
    if steps is None:
        raise Unreachable(f"{target} is passed by a single step: {run_at(1)}")
    if steps == LARGEST_STEPS:
        raise Unreachable(f"{target} is not used up even by {LARGEST_STEPS} steps: {run_at(LARGEST_STEPS)}")
    return int(steps)


def refuse_other_than_three(**four: object) -> None:
    """Refuse anything but three given values and one left out."""
    given = [name for name, value in four.items() if value is not None]
    if len(given) != 3:
        names = ", ".join(four)
        raise InvalidValue("the setting", allowed=f"exactly three of {names}", given=", ".join(given) or "none")
