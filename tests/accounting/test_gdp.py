"""The central limit estimate."""

from __future__ import annotations

import math

import pytest

from lehr.accounting.gaussian_mechanism import gaussian_epsilon
from lehr.accounting.gdp import GDP
from lehr.accounting.pld import PLD
from lehr.errors import UnsupportedEvent
from lehr.events import Adjacency, Gaussian, Laplace, PoissonSampled, Repeated

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE


def test_it_is_the_formula_of_bu_and_others() -> None:
    probability, sigma, steps = 0.01, 1.1, 3000
    mu = probability * math.sqrt(steps * math.expm1(sigma**-2))
    event = Repeated(PoissonSampled(probability, Gaussian(sigma)), steps)
    found = GDP.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert found == pytest.approx(gaussian_epsilon(mu**2, delta=1e-5), rel=1e-9)


def test_it_can_lie_below_the_truth_which_is_why_it_is_an_estimate() -> None:
    event = Repeated(PoissonSampled(512 / 60_000, Gaussian(1.23)), 4698)
    estimate = GDP.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert GDP.is_estimate
    assert estimate < PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)


def test_it_is_exact_without_sampling() -> None:
    event = Repeated(Gaussian(10.0), 25)
    assert GDP.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE) == gaussian_epsilon(0.25, delta=1e-5)


@pytest.mark.parametrize("sigma", [0.0, 0.01])
def test_too_little_noise_gives_infinity(sigma: float) -> None:
    assert GDP.epsilon(PoissonSampled(0.1, Gaussian(sigma)), delta=1e-5, adjacency=ADD_OR_REMOVE) == math.inf


def test_other_noise_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match="'gdp' cannot count Laplace"):
        GDP.epsilon(Laplace(1.0), delta=1e-5, adjacency=ADD_OR_REMOVE)
