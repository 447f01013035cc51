"""The exact hockey-stick divergence of one Poisson-sampled Gaussian step, from the normal distribution alone."""

from __future__ import annotations

import math

from scipy import special

from lehr.accounting.privacy_loss import Direction


def exact_profile(
    *, sampling_probability: float, noise_multiplier: float, direction: Direction, epsilon: float
) -> float:
    """δ at ε: the losses above ε are the outcomes on one side of a threshold."""
    removing = direction is Direction.REMOVE
    odds = (math.expm1(epsilon if removing else -epsilon) + sampling_probability) / sampling_probability
    if odds <= 0:
        return 0.0
    threshold = noise_multiplier**2 * math.log(odds) + 0.5
    side = -1 if removing else 1
    absent = float(special.ndtr(side * threshold / noise_multiplier))
    present = float(special.ndtr(side * (threshold - 1) / noise_multiplier))
    mixture = (1 - sampling_probability) * absent + sampling_probability * present
    return mixture - math.exp(epsilon) * absent if removing else absent - math.exp(epsilon) * mixture
