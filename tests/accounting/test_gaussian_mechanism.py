"""Gaussian noise without sampling, in closed form."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from lehr.accounting.gaussian_mechanism import gaussian_epsilon


def _delta(squared_mu: float, epsilon: float) -> float:
    """The exact privacy profile (Balle & Wang 2018, Theorem 8)."""
    mu = math.sqrt(squared_mu)
    second = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    return float(stats.norm.cdf(mu / 2 - epsilon / mu) - second)


@pytest.mark.parametrize("squared_mu", [1e-4, 0.01, 0.3, 1.0, 16.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.01])
def test_the_profile_at_epsilon_is_delta(squared_mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(squared_mu, delta=delta)
    if epsilon > 0:
        assert _delta(squared_mu, epsilon) == pytest.approx(delta, rel=1e-5)
        assert _delta(squared_mu, epsilon) <= delta * (1 + 1e-9)
    else:
        assert _delta(squared_mu, 0.0) <= delta


def test_the_ends_are_exact() -> None:
    assert gaussian_epsilon(0.0, delta=1e-5) == 0
    assert gaussian_epsilon(math.inf, delta=1e-5) == math.inf


def test_noise_that_hides_a_record_within_delta_costs_nothing() -> None:
    assert gaussian_epsilon(1e-6, delta=0.09) == 0


def test_a_huge_epsilon_is_finite() -> None:
    assert gaussian_epsilon(1e8, delta=1e-12) == pytest.approx(5e7, rel=0.01)


@pytest.mark.parametrize("squared_mu", [1e12, 1.1e12, 1e18])
def test_an_enormous_epsilon_is_not_below_half_of_squared_mu(squared_mu: float) -> None:
    assert squared_mu / 2 < gaussian_epsilon(squared_mu, delta=1e-12) < squared_mu / 2 + 10 * math.sqrt(squared_mu)
