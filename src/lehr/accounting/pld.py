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
from functools import lru_cache

from lehr.accounting import tilted
from lehr.accounting.gaussian_mechanism import gaussian_epsilon
from lehr.accounting.gaussian_steps import GaussianStep, gaussian_steps
from lehr.accounting.privacy_loss import Direction, SampledGaussianLoss
from lehr.errors import AccountantFailed
from lehr.events import Adjacency, Event

PRECISE = 1e-5  # relative change of ε at which the grid is fine enough
LARGEST_STEPS = 10**8  # beyond it the rounding of the transform is no longer far below δ
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
        if any(step.noise_multiplier == 0 for step in steps):
            return lambda repeats: math.inf
        if all(step.sampling_probability == 1 for step in steps):
            squared_mu = math.fsum(count / step.noise_multiplier**2 for step, count in steps.items())
            return lambda repeats: gaussian_epsilon(repeats * squared_mu, delta=delta)
        if most * sum(steps.values()) > LARGEST_STEPS:
            raise AccountantFailed(accountant=self.name, reason=f"there are more than {LARGEST_STEPS} steps")
        directions = [self._in_direction(direction, steps, delta, fewest, most) for direction in Direction]
        return lambda repeats: max(epsilon(repeats) for epsilon in directions)

    def _in_direction(
        self, direction: Direction, steps: Mapping[GaussianStep, int], delta: float, fewest: int, most: int
    ) -> Callable[[int], float]:
        parts = [(_loss(step, direction, delta), count) for step, count in steps.items()]
        if max(part.largest for part, _ in parts) > LARGEST_LOSS:
            raise AccountantFailed(accountant=self.name, reason=f"one step can lose more than {LARGEST_LOSS:g}")
        return tilted.repeated(parts, delta=delta, tolerance=self.tolerance, fewest=fewest, most=most)


PLD = PldAccountant()


@lru_cache(maxsize=16)
def _loss(step: GaussianStep, direction: Direction, delta: float) -> SampledGaussianLoss:
    return SampledGaussianLoss(
        sampling_probability=step.sampling_probability,
        noise_multiplier=step.noise_multiplier,
        direction=direction,
        delta=delta,
    )
