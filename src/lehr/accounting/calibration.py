"""Of epsilon, noise_multiplier, steps and sampling_probability: any three give the fourth.

>>> found = calibrate(delta=1e-5, epsilon=3.0, sampling_probability=512 / 60_000, steps=4698)
>>> round(found.noise_multiplier, 2), 0.999 * 3 <= found.epsilon <= 3
(1.07, True)
>>> calibrate(delta=1e-5, epsilon=3.0, sampling_probability=512 / 60_000, noise_multiplier=1.23).steps
7245

A result never overshoots the target, by the same ``bound`` that will later be charged, and is within 0.1 % of it; for
steps it is the largest count that does not overshoot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lehr import validate
from lehr.accounting.accountant import ACCOUNTANTS, bound
from lehr.accounting.last_within import OUT_OF_SIGHT, last_within
from lehr.errors import InvalidValue, Unreachable
from lehr.events import Adjacency, Event, Gaussian, PoissonSampled, Repeated

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
        return _run(self.noise_multiplier, self.steps, self.sampling_probability)


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
    sigma, count, probability = _found(epsilon, delta, noise_multiplier, steps, sampling_probability)
    spent = bound(_run(sigma, count, probability), delta=delta).epsilon
    return Setting(epsilon=spent, noise_multiplier=sigma, steps=count, sampling_probability=probability)


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


def _found(
    epsilon: float | None, delta: float, sigma: float | None, count: int | None, probability: float | None
) -> tuple[float, int, float]:
    if sigma is not None and count is not None and probability is not None:
        return sigma, count, probability
    target = Target(_given(epsilon), delta)
    if sigma is None:
        steps, chance = validate.count(steps=count), _given(probability)
        return smallest_noise_multiplier(lambda value: _run(value, steps, chance), target), steps, chance
    if count is None:
        noise, chance = sigma, _given(probability)
        return noise, largest_steps(lambda steps: _run(noise, steps, chance), target), chance
    noise, steps = sigma, validate.count(steps=count)
    sample = largest_sample(
        lambda value: _run(noise, steps, value), target, smallest=SMALLEST_SAMPLING_PROBABILITY, largest=1.0
    )
    return noise, steps, sample


def _given(value: float | None) -> float:
    assert value is not None  # three of four are given, and the callers have found the fourth
    return value


def _run(sigma: float, count: int, probability: float) -> Event:
    return Repeated(PoissonSampled(probability, Gaussian(sigma)), count)


def _named(target: Target) -> str:
    return f"epsilon {target.epsilon:g} at delta {target.delta:g}"
