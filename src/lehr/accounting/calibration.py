"""Of epsilon, noise_multiplier, steps and sampling_probability: any three give the fourth.

>>> found = calibrate(delta=1e-5, epsilon=3.0, sampling_probability=512 / 60_000, steps=4698)
>>> round(found.noise_multiplier, 2), 0.999 * 3 <= found.epsilon <= 3
(1.07, True)
>>> calibrate(delta=1e-5, epsilon=3.0, sampling_probability=512 / 60_000, noise_multiplier=1.23).steps
7245

A result never overshoots the target, by the same ``bound`` that will later be charged, and is within 0.1 % of it; for
steps it is the largest count that does not overshoot. ``last_within`` is the search behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lehr import validate
from lehr.accounting.accountant import ACCOUNTANTS, bound
from lehr.accounting.events import Adjacency, Event, Gaussian, PoissonSampled, Repeated
from lehr.errors import InvalidValue, Unreachable

OUT_OF_SIGHT = 30.0  # stands for the logarithm of a ratio of zero or infinity

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
    known: dict[float, float] = {}

    def ratio_at(value: float) -> float:
        if value not in known:
            known[value] = log_ratio(value)
        return known[value]

    is_start_within = ratio_at(start) <= 0
    inside = outside = start
    for value in _further_and_further(start, other_end if is_start_within else safe_end, whole):
        inside, outside = (outside, value) if is_start_within else (value, inside)
        if (ratio_at(value) <= 0) != is_start_within:
            break
        inside, outside = value, value
    else:
        return other_end if is_start_within else None
    return _narrow(ratio_at, inside, outside, whole)


def _further_and_further(start: float, end: float, whole: bool) -> Iterator[float]:
    """Values from ``start`` to ``end``, at logarithmic distances that double; ``end`` is the last."""
    distance = math.copysign(1.0, end - start)
    value = start
    while value != end:
        value = value * math.exp(distance)
        value = float(round(value)) if whole else value
        if (end - value) * distance <= 0:
            value = end
        yield value
        distance *= 2


def _narrow(ratio_at: Callable[[float], float], inside: float, outside: float, whole: bool) -> float:
    """Regula falsi with the Illinois rule: an end that stays twice loses half of its pull, so that both ends move."""
    aim = 0.0 if whole else _CLOSE_ENOUGH / 2  # a little inside, so that a good guess ends the search
    below, above = -ratio_at(inside) - aim, ratio_at(outside) + aim
    was_inside: bool | None = None
    for attempt in range(_MOST_TRIES):
        if _is_done(ratio_at(inside), inside, outside, whole):
            break
        share = 0.5 if attempt % 5 == 4 else below / (above + below)
        middle = _between(inside, outside, share, whole)
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


def _between(inside: float, outside: float, share: float, whole: bool) -> float:
    value: float = inside * (outside / inside) ** min(max(share, 0.01), 0.99)
    if not whole:
        return value
    low, high = sorted((inside, outside))
    return min(max(float(round(value)), low + 1), high - 1)


SMALLEST_NOISE_MULTIPLIER, LARGEST_NOISE_MULTIPLIER = 0.05, 1e7
SMALLEST_SAMPLING_PROBABILITY = 1e-10
LARGEST_STEPS = 10**8


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

    def log_ratio(self, event: Event) -> float:
        """log(ε of the event / ε of the target)."""
        spent = self._spent(event)
        if spent in (0, math.inf):
            return OUT_OF_SIGHT if spent else -OUT_OF_SIGHT
        return math.log(spent / self.epsilon)

    def _spent(self, event: Event) -> float:
        if self.accountant is None:
            return bound(event, delta=self.delta, adjacency=self.adjacency).epsilon
        counting = ACCOUNTANTS[validate.one_of(ACCOUNTANTS, accountant=self.accountant)]
        return counting.epsilon(event, delta=self.delta, adjacency=self.adjacency)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A run of equal Poisson-sampled Gaussian steps, and its ε."""

    epsilon: float
    noise_multiplier: float
    steps: int
    sampling_probability: float

    @property
    def event(self) -> Event:
        """What such a run does to the records."""
        return Repeated(PoissonSampled(self.sampling_probability, Gaussian(self.noise_multiplier)), self.steps)


def calibrate(
    *,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    sampling_probability: float | None = None,
) -> Setting:
    """The setting of which exactly three of the last four numbers are given. Its ``epsilon`` is what it costs."""
    validate.delta(delta=delta)
    refuse_other_than_three(
        epsilon=epsilon, noise_multiplier=noise_multiplier, steps=steps, sampling_probability=sampling_probability
    )
    setting = Setting(
        epsilon=0.0,
        noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
        steps=1 if steps is None else validate.count(steps=steps),
        sampling_probability=1.0 if sampling_probability is None else sampling_probability,
    )

    def run_with(**number: Any) -> Event:
        return replace(setting, **number).event

    found: dict[str, Any] = {}
    if epsilon is not None:
        target = Target(epsilon, delta)
        if noise_multiplier is None:
            sigma = smallest_noise_multiplier(lambda value: run_with(noise_multiplier=value), target)
            found = {"noise_multiplier": sigma}
        elif steps is None:
            found = {"steps": largest_steps(lambda value: run_with(steps=value), target)}
        else:
            probability = largest_sample(
                lambda value: run_with(sampling_probability=value),
                target,
                smallest=SMALLEST_SAMPLING_PROBABILITY,
                largest=1.0,
            )
            found = {"sampling_probability": probability}
    return replace(setting, **found, epsilon=bound(run_with(**found), delta=delta).epsilon)


def smallest_noise_multiplier(run_at: Callable[[float], Event], target: Target) -> float:
    """The least noise with which the run stays within the target; ``run_at`` gives the run at a noise multiplier."""
    found = last_within(
        lambda sigma: target.log_ratio(run_at(sigma)),
        safe_end=LARGEST_NOISE_MULTIPLIER,
        other_end=SMALLEST_NOISE_MULTIPLIER,
        start=1.0,
    )
    if found is None:
        raise Unreachable(f"{_named(target)} is passed even with a noise multiplier of {LARGEST_NOISE_MULTIPLIER:g}")
    if found == SMALLEST_NOISE_MULTIPLIER:
        raise Unreachable(f"{_named(target)} is not used up even by a noise multiplier of {found:g}")
    return found


def largest_sample(
    run_at: Callable[[float], Event], target: Target, *, smallest: float, largest: float, whole: bool = False
) -> float:
    """The largest sample, as a probability or a number of records, with which the run stays within the target."""
    found = last_within(
        lambda sample: target.log_ratio(run_at(sample)),
        safe_end=smallest,
        other_end=largest,
        start=max(smallest, largest // 100 if whole else largest / 100),
        whole=whole,
    )
    if found is None:
        raise Unreachable(f"{_named(target)} is passed even by the smallest sample, {smallest:g} of {largest:g}")
    return found


def largest_steps(run_at: Callable[[int], Event], target: Target) -> int:
    """The largest number of steps that stays within the target; ``run_at`` gives the run of so many steps."""
    found = last_within(
        lambda count: target.log_ratio(run_at(int(count))),
        safe_end=1,
        other_end=LARGEST_STEPS,
        start=1000,
        whole=True,
    )
    if found is None:
        raise Unreachable(f"{_named(target)} is passed by a single step: {run_at(1)}")
    if found == LARGEST_STEPS:
        raise Unreachable(f"{_named(target)} is not used up even by {LARGEST_STEPS} steps: {run_at(LARGEST_STEPS)}")
    return int(found)


def refuse_other_than_three(**four: object) -> None:
    """Refuse anything but three given values and one left out."""
    given = [name for name, value in four.items() if value is not None]
    if len(given) != 3:
        names = ", ".join(four)
        raise InvalidValue("the setting", allowed=f"exactly three of {names}", given=", ".join(given) or "none")


def _named(target: Target) -> str:
    return f"epsilon {target.epsilon:g} at delta {target.delta:g}"
