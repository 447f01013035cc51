"""The loss of one step, exactly and on a grid."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lehr.accounting.privacy_loss import Direction, GridLoss, SampledGaussianLoss
from tests.accounting.exact_profile import exact_profile

SETTINGS = [(0.01, 1.1), (0.3, 0.5), (1.0, 2.0), (1e-6, 0.3), (0.9, 50.0)]


def _loss(probability: float, sigma: float, direction: Direction, delta: float = 1e-6) -> SampledGaussianLoss:
    return SampledGaussianLoss(
        sampling_probability=probability, noise_multiplier=sigma, direction=direction, delta=delta
    )


def _hockey_stick(grid: GridLoss, epsilon: float) -> float:
    return float(np.maximum(-np.expm1(epsilon - grid.losses), 0) @ grid.masses) + grid.infinite_mass


def _true_hockey_stick(probability: float, sigma: float, direction: Direction, epsilon: float) -> float:
    return exact_profile(sampling_probability=probability, noise_multiplier=sigma, direction=direction, epsilon=epsilon)


@pytest.mark.parametrize("probability, sigma", SETTINGS)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("spacing", [0.5, 0.01])
def test_the_grid_is_never_below_the_true_hockey_stick(
    probability: float, sigma: float, direction: Direction, spacing: float
) -> None:
    grid = _loss(probability, sigma, direction).on_grid(spacing)
    for epsilon in (0.0, 0.1, 0.333, 1.0, 2.9):
        on_grid = _hockey_stick(grid, epsilon)
        assert on_grid >= _true_hockey_stick(probability, sigma, direction, epsilon) * (1 - 1e-9) - 1e-15


def test_a_finer_grid_comes_closer() -> None:
    loss = _loss(0.1, 1.0, Direction.REMOVE)
    truth = _true_hockey_stick(0.1, 1.0, Direction.REMOVE, 0.333)
    coarse, fine = (_hockey_stick(loss.on_grid(spacing), 0.333) - truth for spacing in (0.1, 0.01))
    assert coarse > 50 * fine > 0


@given(
    probability=st.floats(1e-7, 1.0),
    log_sigma=st.floats(math.log(0.3), math.log(1000)),
    direction=st.sampled_from(Direction),
    log_spacing=st.floats(-8, 1),
)
def test_the_grid_keeps_all_mass_and_never_lowers_the_losses(
    probability: float, log_sigma: float, direction: Direction, log_spacing: float
) -> None:
    loss = _loss(probability, math.exp(log_sigma), direction)
    spacing = max(math.exp(log_spacing), (loss.largest - loss.smallest) / 1e5)
    grid = loss.on_grid(spacing)
    assert np.all(grid.masses >= 0)
    assert math.fsum(grid.masses) + grid.infinite_mass == pytest.approx(1, abs=1e-12)
    # E[e^(−loss)] is the other neighbour's total probability: above one would mean losses that are too small
    assert math.fsum(grid.masses * np.exp(-grid.losses)) <= 1 + 1e-12


@pytest.mark.parametrize("probability, sigma", SETTINGS)
@pytest.mark.parametrize("tilt", [0.5, 1.5])
def test_log_moments_are_those_of_the_densities(probability: float, sigma: float, tilt: float) -> None:
    def integrand(x: float) -> float:
        ratio = 1 - probability + probability * math.exp((2 * x - 1) / (2 * sigma**2))
        return float(stats.norm.pdf(x, 0, sigma) * ratio ** (1 + tilt))

    centre = (1 + tilt) * 1.0
    edges = np.linspace(-12 * sigma, centre + 12 * sigma, 80)
    truth = sum(integrate.quad(integrand, a, b)[0] for a, b in pairwise(edges))
    found = _loss(probability, sigma, Direction.REMOVE, 1e-12).log_moment(tilt)
    assert found == pytest.approx(math.log(truth), rel=1e-4, abs=1e-9)


def test_removing_and_adding_differ() -> None:
    removing, adding = (_loss(0.1, 0.7, direction) for direction in Direction)
    assert removing.largest > 5 > adding.largest
    assert adding.largest == pytest.approx(-math.log(0.9), rel=1e-6)
