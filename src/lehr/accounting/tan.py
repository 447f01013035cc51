"""Total amount of noise (Sander, Stock & Sablayrolles 2023): an estimate that is fair for noise multipliers above 2.

η² = Σ q²/(2σ²) over the steps; ε ≈ η² + 2η·√ln(1/δ). Below a noise multiplier of about 2 the true ε is larger, much
larger near 1 (the paper's "privacy wall"). It is for choosing settings, never for a guarantee.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr.accounting.gaussian_steps import GaussianStep, gaussian_steps
from lehr.events import Adjacency, Event


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
