"""Gaussian noise in closed form: without sampling (exact), and two estimates for sampled steps.

``gdp`` is the central limit theorem of Gaussian differential privacy (Dong, Roth & Su 2022, Corollary 5.4; Bu, Dong,
Long & Su 2020). The limit is approached from below as well as from above, so the true ε may be larger.

``tan`` is the total amount of noise (Sander, Stock & Sablayrolles 2023): η² = Σ q²/(2σ²) over the steps, and
ε ≈ η² + 2η·√ln(1/δ). It is fair for noise multipliers above 2; near 1 the true ε is much larger.

Neither estimate is a guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import dp_accounting
import numpy as np

from lehr.accounting.events import Adjacency, Atom, Event, Gaussian, NonPrivate, PoissonSampled, counted
from lehr.errors import UnsupportedEvent

SMALLEST_NOISE = 1e-3  # less counts as none
SMALLEST_PROBABILITY = 1e-20
LARGEST_NOISE = 1e11


class GaussianStep(NamedTuple):
    """One step; a sampling probability of one means that every record took part."""

    sampling_probability: float
    noise_multiplier: float


def gaussian_steps(event: Event, *, adjacency: Adjacency, accountant: str) -> dict[GaussianStep, int]:
    """Each distinct step and how often it happened; whatever is no Gaussian step is refused by name."""
    steps: dict[GaussianStep, int] = {}
    for atom, count in counted(event).items():
        step = _within_range(_gaussian_step(atom, adjacency, accountant))
        steps[step] = steps.get(step, 0) + count
    return steps


def _within_range(step: GaussianStep) -> GaussianStep:
    """The nearest step that arithmetic can take and that loses no less: more sampling, or less noise."""
    sigma = min(step.noise_multiplier, LARGEST_NOISE)
    return GaussianStep(max(step.sampling_probability, SMALLEST_PROBABILITY), sigma if sigma >= SMALLEST_NOISE else 0.0)


def _gaussian_step(atom: Atom, adjacency: Adjacency, accountant: str) -> GaussianStep:
    match atom:
        case Gaussian():
            return GaussianStep(1.0, atom.noise_multiplier)
        case NonPrivate():
            return GaussianStep(1.0, 0.0)
        case PoissonSampled() if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            return GaussianStep(atom.sampling_probability, atom.event.noise_multiplier)
        case PoissonSampled():
            reason = "Poisson sampling is counted under add-or-remove-one only"
        case _:
            reason = "it counts Gaussian noise only, on all records or on a Poisson sample of them"
    raise UnsupportedEvent(accountant=accountant, event=atom, reason=reason)


_LARGEST_CLOSED_FORM = 1e12


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
class GdpEstimate:
    """ε of the Gaussian mechanism with μ² = Σ q²·(e^(1/σ²) − 1) over the steps."""

    name: str = "gdp"
    is_estimate: bool = True
    theorem: str = (
        "central limit theorem for Gaussian differential privacy (Bu, Dong, Long & Su 2020), an approximation"
    )
    proof: None = None

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The estimate; infinite where there is no noise."""
        steps = gaussian_steps(event, adjacency=adjacency, accountant=self.name)
        return gaussian_epsilon(sum(count * _squared_mu(step) for step, count in steps.items()), delta=delta)


GDP = GdpEstimate()


def _squared_mu(step: GaussianStep) -> float:
    if step.noise_multiplier == 0:
        return math.inf
    precision = step.noise_multiplier**-2
    if step.sampling_probability == 1:
        return precision
    try:
        return step.sampling_probability**2 * math.expm1(precision)
    except OverflowError:
        return math.inf


@dataclass(frozen=True, slots=True)
class TanEstimate:
    """ε from the total amount of noise alone."""

    name: str = "tan"
    is_estimate: bool = True
    theorem: str = "Rényi divergence at small orders and large noise (Sander et al. 2023, Section 3), an approximation"
    proof: None = None

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The estimate; infinite where there is no noise."""
        steps = gaussian_steps(event, adjacency=adjacency, accountant=self.name)
        eta_squared = sum(count * _eta_squared(step) for step, count in steps.items())
        return eta_squared + 2 * math.sqrt(eta_squared * -math.log(delta))


TAN = TanEstimate()


def _eta_squared(step: GaussianStep) -> float:
    if step.noise_multiplier == 0:
        return math.inf
    return (step.sampling_probability / step.noise_multiplier) ** 2 / 2
