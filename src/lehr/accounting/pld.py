"""Privacy loss distributions: the tight accountant for Gaussian steps, sampled or not, under add-or-remove-one.

dp-accounting composes losses on a fixed grid: 1e-4 wide by default, in plain floating point. That is exact enough for
usual settings; at others it runs out of memory, or its rounding exceeds δ and the answer lies above the Rényi bound.
Here the same distributions are composed on a grid that fits the setting, tilted so that tiny δ's keep their precision;
the tests compare the two. Unsampled Gaussian steps have a closed form, and dp-accounting computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from lehr.accounting import tilted
from lehr.accounting.gaussian_mechanism import gaussian_epsilon
from lehr.accounting.gaussian_steps import GaussianStep, gaussian_steps
from lehr.accounting.privacy_loss import Direction, SampledGaussianLoss
from lehr.errors import AccountantFailed
from lehr.events import Adjacency, Event

PRECISE = 1e-5  # relative change of ε at which the grid is fine enough
LARGEST_STEPS = 10**8  # beyond it the rounding of the transform is no longer far below δ
MOST_DIFFERENT_STEPS = 64  # each has a grid of its own
SMALLEST_DELTA = 1e-200  # below it the masses that decide leave the range of a double
LARGEST_DELTA = 0.5  # a larger one counts as this, which can only raise ε
LARGEST_LOSS = 500.0  # of one step; beyond it e^loss leaves the range of a double


@dataclass(frozen=True, slots=True)
class PldAccountant:
    """ε by composing privacy losses; an upper bound, refined until a finer grid changes it by ``tolerance``·ε."""

    name: str = "pld"
    is_estimate: bool = False
    theorem: str = (
        "dominating pairs of the Poisson-sampled Gaussian (Zhu, Dong & Wang 2022), discretised from above "
        "(Doroshenko et al. 2022) and composed by Fourier transform (Koskela, Jälkö & Honkela 2020)"
    )
    proof: str = "accounting/pld.proof.md"
    tolerance: float = PRECISE

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The larger ε of the two directions, adding a record and removing it."""
        return self.repeated(event, delta=delta, adjacency=adjacency, fewest=1, most=1)(1)

    def repeated(
        self, event: Event, *, delta: float, adjacency: Adjacency, fewest: int, most: int
    ) -> Callable[[int], float]:
        """ε of the event repeated so many times, from ``fewest`` to ``most``; cheap to ask for many counts."""
        steps = gaussian_steps(event, adjacency=adjacency, accountant=self.name)
        delta = min(delta, LARGEST_DELTA)
        if any(step.noise_multiplier == 0 for step in steps):
            return lambda repeats: math.inf
        if all(step.sampling_probability == 1 for step in steps):
            squared_mu = math.fsum(count / step.noise_multiplier**2 for step, count in steps.items())
            return lambda repeats: gaussian_epsilon(repeats * squared_mu, delta=delta)
        if most * _total_variation(steps) <= delta:
            return lambda repeats: 0.0
        if len(steps) > MOST_DIFFERENT_STEPS:
            raise AccountantFailed(accountant=self.name, reason=f"more than {MOST_DIFFERENT_STEPS} different steps")
        if delta < SMALLEST_DELTA:
            raise AccountantFailed(accountant=self.name, reason=f"delta is below {SMALLEST_DELTA:g}")
        if most * sum(steps.values()) > LARGEST_STEPS:
            raise AccountantFailed(accountant=self.name, reason=f"there are more than {LARGEST_STEPS} steps")
        removing, adding = (
            [(_loss(step, direction, delta), count) for step, count in steps.items()] for direction in Direction
        )
        if max(part.largest for part, _ in (*removing, *adding)) > LARGEST_LOSS:
            raise AccountantFailed(accountant=self.name, reason=f"one step can lose more than {LARGEST_LOSS:g}")
        compose = partial(tilted.repeated, delta=delta, tolerance=self.tolerance, fewest=fewest, most=most)
        on_removing = compose(removing)
        on_adding = compose(adding, larger=on_removing)
        return partial(_larger, on_removing, on_adding, most)


PLD = PldAccountant()


def _larger(on_removing: Callable[[int], float], on_adding: Callable[[int], float], most: int, repeats: int) -> float:
    """The larger ε of both directions; ε never falls with repeats, so that of the most of them often settles it."""
    removing = on_removing(repeats)
    return removing if on_adding(most) <= removing else max(removing, on_adding(repeats))


def _total_variation(steps: Mapping[GaussianStep, int]) -> float:
    """At most this, for one repeat; where it is within δ, (0, δ) holds."""
    return sum(
        count * step.sampling_probability * math.erf(1 / (math.sqrt(8) * step.noise_multiplier))
        for step, count in steps.items()
    )


@lru_cache(maxsize=16)
def _loss(step: GaussianStep, direction: Direction, delta: float) -> SampledGaussianLoss:
    return SampledGaussianLoss(
        sampling_probability=step.sampling_probability,
        noise_multiplier=step.noise_multiplier,
        direction=direction,
        delta=delta,
    )
