"""The loss of one step, exactly and on a grid."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from lehr.accounting.privacy_loss import (
    Direction,
    GridLoss,
    RandomisedResponseLoss,
    SampledGaussianLoss,
    randomised_response_divergences,
)
from lehr.accounting.rdp import FRACTIONAL_ORDERS
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


ORDERS = np.array(FRACTIONAL_ORDERS)


def _exact_divergence(epsilon: float, order: float) -> float:
    """From the definition, with many digits."""
    with localcontext() as context:
        context.prec = 400
        ratio, power = Decimal(epsilon).exp(), Decimal(order)
        true, false = ratio / (1 + ratio), 1 / (1 + ratio)
        total = true**power * false ** (1 - power) + false**power * true ** (1 - power)
        return float(total.ln() / (power - 1))


@pytest.mark.parametrize("epsilon", [1e-120, 1e-9, 1e-3, 0.1, 1.0, 3.0, 40.0, 250.0])
def test_divergences_are_those_of_the_definition_and_never_below(epsilon: float) -> None:
    for order in (1.0001, 1.1, 2.0, 7.3, 64.0, 1024.0):
        exact = _exact_divergence(epsilon, order)
        (found,) = randomised_response_divergences(epsilon, np.array([order]))
        assert exact * (1 - 1e-15) <= found <= exact * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 2.0, 700.0, 1e100])
def test_divergences_rise_with_the_order_up_to_epsilon(epsilon: float) -> None:
    found = randomised_response_divergences(epsilon, ORDERS)
    assert (np.diff(found) >= 0).all()
    assert (found <= epsilon).all()
    assert (found <= ORDERS * epsilon**2 / 2 * (1 + 1e-13)).all()


def test_divergences_rise_with_epsilon() -> None:
    found = [randomised_response_divergences(epsilon, ORDERS) for epsilon in np.geomspace(1e-12, 1e3, 400).tolist()]
    assert all((later > earlier).all() for earlier, later in pairwise(found))


def test_none_and_all_of_the_secret() -> None:
    assert (randomised_response_divergences(0.0, ORDERS) == 0).all()
    assert (randomised_response_divergences(1.7e308, ORDERS) == math.inf).all()


@pytest.mark.parametrize("tilt", [-0.5, 0.0, 1.0, 30.0])
def test_moments_are_those_of_two_outcomes(tilt: float) -> None:
    loss = RandomisedResponseLoss(0.7)
    masses, losses = np.array([1.0, math.exp(-0.7)]) / (1 + math.exp(-0.7)), np.array([0.7, -0.7])
    tilted = masses * np.exp(tilt * losses)
    assert loss.log_moment(tilt) == pytest.approx(math.log(tilted.sum()), rel=1e-12, abs=1e-15)
    law = tilted / tilted.sum()
    assert loss.variance(tilt) == pytest.approx(law @ losses**2 - (law @ losses) ** 2, rel=1e-9)


def _profile(grid: GridLoss, epsilon: float) -> float:
    return float(grid.masses @ np.maximum(-np.expm1(np.minimum(epsilon - grid.losses, 0.0)), 0.0))


@pytest.mark.parametrize("epsilon", [1e-5, 0.25, 0.3, 5.0])
@pytest.mark.parametrize("spacing", [2.0**-2, 2.0**-7])
def test_the_grid_dominates_and_keeps_both_probabilities(epsilon: float, spacing: float) -> None:
    grid = RandomisedResponseLoss(epsilon).on_grid(spacing)
    assert grid.masses.sum() == pytest.approx(1, rel=1e-14)
    assert grid.masses @ np.exp(-grid.losses) == pytest.approx(1, rel=1e-13)
    true = 1 / (1 + math.exp(-epsilon))
    for level in np.linspace(-6, 6, 97).tolist():
        exact = max(true * -math.expm1(level - epsilon), 0.0) + max((1 - true) * -math.expm1(level + epsilon), 0.0)
        assert _profile(grid, level) >= exact - 1e-15
    assert np.count_nonzero(grid.masses) <= 4


def test_an_epsilon_on_the_grid_is_kept_exactly() -> None:
    grid = RandomisedResponseLoss(0.5).on_grid(0.25)
    assert {loss: mass for loss, mass in zip(grid.losses, grid.masses, strict=True) if mass} == pytest.approx(
        {0.5: 1 / (1 + math.exp(-0.5)), -0.5: 1 / (1 + math.exp(0.5))}
    )
