"""Where the deciding losses lie."""

from __future__ import annotations

import math

import pytest

from lehr.accounting.privacy_loss import Direction, SampledGaussianLoss
from lehr.accounting.window import Window


def _gaussian(sigma: float, delta: float) -> SampledGaussianLoss:
    return SampledGaussianLoss(
        sampling_probability=1.0, noise_multiplier=sigma, direction=Direction.REMOVE, delta=delta
    )


def test_the_tilt_is_the_best_renyi_order_minus_one() -> None:
    sigma, delta = 4.0, 1e-6
    window = Window([(_gaussian(sigma, delta), 1)], delta=delta, fewest=1, most=1)
    best = sigma * math.sqrt(-2 * math.log(delta))  # for Gaussian noise, from the derivative of the Rényi bound
    assert window.tilt == pytest.approx(best, rel=0.06)


def test_the_tilted_losses_lie_inside() -> None:
    sigma, delta, steps = 10.0, 1e-6, 50
    window = Window([(_gaussian(sigma, delta), 1)], delta=delta, fewest=steps, most=steps)
    mean = steps * (0.5 + window.tilt) / sigma**2
    deviation = math.sqrt(steps) / sigma
    assert window.low == pytest.approx(mean - 6.8 * deviation, abs=0.3 * deviation)
    assert window.high == pytest.approx(mean + 6.8 * deviation, abs=0.3 * deviation)


def test_a_range_of_repeats_is_framed_from_the_fewest_to_the_most() -> None:
    parts = [(_gaussian(10.0, 1e-6), 1)]
    whole = Window(parts, delta=1e-6, fewest=50, most=100)
    top = Window(parts, delta=1e-6, fewest=100, most=100)
    assert whole.low < top.low
    assert whole.high == top.high
