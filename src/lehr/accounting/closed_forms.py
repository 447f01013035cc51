"""Gaussian noise in closed form: without sampling (exact), and two estimates for sampled steps.

``gdp`` is the central limit theorem of Gaussian differential privacy (Dong, Roth & Su 2022, Corollary 5.4; Bu, Dong,
Long & Su 2020). The limit is approached from below as well as from above, so the true ε may be larger.

``tan`` is the total amount of noise (Sander, Stock & Sablayrolles 2023): η² = Σ q²/(2σ²) over the steps, and
ε ≈ η² + 2η·√ln(1/δ). It is fair for noise multipliers above 2; near 1 the true ε is much larger.

Neither estimate is a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import dp_accounting
import numpy as np
from scipy import stats

from lehr.accounting.events import (
    Adjacency,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    TruncatedPoissonSampled,
    counted_by_cycles,
)
from lehr.errors import UnsupportedEvent

SMALLEST_NOISE = 1e-3  # less counts as none
SMALLEST_PROBABILITY = 1e-20
LARGEST_NOISE = 1e11
_LARGEST_CLOSED_FORM = 1e12
_ROUNDING_OF_A_TAIL = 1e-9  # relative, of a binomial tail: far more than its computation can be off
_SMALLEST_TAIL = 1e-290  # a smaller one is not told from zero


class GaussianStep(NamedTuple):
    """One step; a sampling probability of one means that every record took part."""

    sampling_probability: float
    noise_multiplier: float


def gaussian_steps(event: Event, *, adjacency: Adjacency, accountant: str) -> dict[GaussianStep, int]:
    """Each distinct step and how often it happened; events that are no Gaussian steps are refused by name.

    A step out of the range of arithmetic stands as the nearest that loses no less: more sampling, or less noise.
    """
    steps: dict[GaussianStep, int] = {}
    for atom, count in counted_by_cycles(event).items():
        match atom:
            case Gaussian():
                probability, sigma = 1.0, atom.noise_multiplier
            case NonPrivate():
                probability, sigma = 1.0, 0.0
            case PoissonSampled() if adjacency is not Adjacency.REPLACE_ONE:
                probability, sigma = atom.sampling_probability, atom.event.noise_multiplier
            case _:
                reason = "it counts Gaussian noise only, on all records or on a Poisson sample of them"
                if isinstance(atom, PoissonSampled):
                    reason = "Poisson sampling is not counted under replace-one"
                raise UnsupportedEvent(accountant=accountant, event=atom, reason=reason)
        sigma = min(sigma, LARGEST_NOISE) if sigma >= SMALLEST_NOISE else 0.0
        step = GaussianStep(max(probability, SMALLEST_PROBABILITY), sigma)
        steps[step] = steps.get(step, 0) + count
    return steps


def cut_probability(event: TruncatedPoissonSampled) -> float:
    """An upper bound on the probability that the other records alone fill the batch, so that one more replaces one."""
    if event.largest_batch >= event.records:
        return 0.0
    others = float(stats.binom.sf(event.largest_batch - 1, event.records - 1, event.sampling_probability))
    return min(1.0, max(others * (1 + _ROUNDING_OF_A_TAIL), _SMALLEST_TAIL))


def gaussian_epsilon(squared_mu: float, *, delta: float) -> float:
    """ε of one Gaussian step with (sensitivity / noise)² = ``squared_mu``; never below the truth.

    Several steps compose to one whose ``squared_mu`` is the sum of theirs (Dong, Roth & Su 2022, Corollary 3.3).
    """
    if squared_mu in (0, math.inf):
        return float(squared_mu)
    if squared_mu > _LARGEST_CLOSED_FORM:  # the profile is flat to a double; this is the bound of zCDP
        return squared_mu / 2 + math.sqrt(-2 * squared_mu * math.log(delta))
    with np.errstate(all="ignore"):
        root = float(dp_accounting.get_epsilon_gaussian(squared_mu**-0.5, delta))
    return root * (1 + 1e-9) + 1e-12 if root else 0.0  # its root finder may stop this much below the root


@dataclass(frozen=True, slots=True)
class Estimate:
    """ε from a sum over the steps; infinite where a step has no noise."""

    name: str
    theorem: str
    cost: Callable[[GaussianStep], float]
    convert: Callable[[float, float], float]
    is_estimate: bool = True
    proof: None = None

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        steps = gaussian_steps(event, adjacency=adjacency, accountant=self.name)
        if any(step.noise_multiplier == 0 for step in steps):
            return math.inf
        return self.convert(sum(count * self.cost(step) for step, count in steps.items()), delta)


def _squared_mu(step: GaussianStep) -> float:
    precision = step.noise_multiplier**-2
    if step.sampling_probability == 1:
        return precision
    try:
        return step.sampling_probability**2 * math.expm1(precision)
    except OverflowError:
        return math.inf


GDP = Estimate(
    name="gdp",
    theorem="central limit theorem for Gaussian differential privacy (Bu, Dong, Long & Su 2020), an approximation",
    cost=_squared_mu,
    convert=lambda squared_mu, delta: gaussian_epsilon(squared_mu, delta=delta),
)
TAN = Estimate(
    name="tan",
    theorem="Rényi divergence at small orders and large noise (Sander et al. 2023, Section 3), an approximation",
    cost=lambda step: (step.sampling_probability / step.noise_multiplier) ** 2 / 2,
    convert=lambda eta_squared, delta: eta_squared + 2 * math.sqrt(eta_squared * -math.log(delta)),
)
