"""The worst pure mechanism: its Rényi divergences and its loss, against sums over its two outcomes."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from itertools import pairwise

import numpy as np
import pytest

from lehr.accounting.privacy_loss import GridLoss
from lehr.accounting.randomised_response import RandomisedResponseLoss, randomised_response_divergences
from lehr.accounting.rdp import FRACTIONAL_ORDERS

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
