"""Gaussian differential privacy by the central limit theorem: a quick estimate, never a guarantee.

The limit is approached from below as well as from above, so the true ε may be larger (Dong, Roth & Su 2022, Corollary
5.4; Bu, Dong, Long & Su 2020). Kept for comparison with papers that report it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr.accounting.gaussian_mechanism import gaussian_epsilon
from lehr.accounting.gaussian_steps import GaussianStep, gaussian_steps
from lehr.events import Adjacency, Event


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
