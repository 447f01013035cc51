"""Which events are made of Gaussian steps."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from lehr.accounting.closed_forms import GDP, TAN, GaussianStep, gaussian_epsilon, gaussian_steps
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)
from lehr.accounting.pld import PLD
from lehr.errors import UnsupportedEvent
from tests.accounting.settings import TAN as TAN_REFERENCES
from tests.accounting.settings import Reference

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE


def test_a_gaussian_step_is_a_sampled_one_with_probability_one() -> None:
    event = Composed(
        (Gaussian(2.0), Repeated(PoissonSampled(1.0, Gaussian(2.0)), 4), PoissonSampled(0.5, Gaussian(2.0)))
    )
    steps = gaussian_steps(event, adjacency=ADD_OR_REMOVE, accountant="x")
    assert steps == {GaussianStep(1.0, 2.0): 5, GaussianStep(0.5, 2.0): 1}


def test_a_release_without_noise_is_a_step_without_noise() -> None:
    steps = gaussian_steps(NonPrivate("raw"), adjacency=ADD_OR_REMOVE, accountant="x")
    assert steps == {GaussianStep(1.0, 0.0): 1}


@pytest.mark.parametrize(
    "event",
    [
        Laplace(1.0),
        PureDP(0.1),
        SampledWithoutReplacement(10, 2, Gaussian(1.0)),
        RepeatAndSelect(Gaussian(1.0), mean=2.0),
    ],
)
def test_anything_else_is_refused_by_name(event: Event) -> None:
    with pytest.raises(UnsupportedEvent, match=r"'pld' cannot count .*Gaussian noise only") as caught:
        gaussian_steps(Composed((Gaussian(1.0), event)), adjacency=ADD_OR_REMOVE, accountant="pld")
    assert caught.value.event == event


def test_poisson_sampling_is_refused_under_replace_one() -> None:
    with pytest.raises(UnsupportedEvent, match="add-or-remove-one only"):
        gaussian_steps(PoissonSampled(0.5, Gaussian(1.0)), adjacency=Adjacency.REPLACE_ONE, accountant="pld")


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


def test_noise_that_hides_a_record_within_delta_costs_nothing() -> None:
    assert gaussian_epsilon(1e-6, delta=0.09) == 0


def test_a_huge_epsilon_is_finite() -> None:
    assert gaussian_epsilon(1e8, delta=1e-12) == pytest.approx(5e7, rel=0.01)


@pytest.mark.parametrize("squared_mu", [1e12, 1.1e12, 1e18])
def test_an_enormous_epsilon_is_not_below_half_of_squared_mu(squared_mu: float) -> None:
    assert squared_mu / 2 < gaussian_epsilon(squared_mu, delta=1e-12) < squared_mu / 2 + 10 * math.sqrt(squared_mu)


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


@pytest.mark.parametrize("reference", TAN_REFERENCES)
def test_it_gives_the_reference_values(reference: Reference) -> None:
    found = TAN.epsilon(reference.event, delta=reference.delta, adjacency=ADD_OR_REMOVE)
    assert found == pytest.approx(reference.tan, abs=5e-4 if reference.tan != 7.48 else 5e-3)


def test_below_the_privacy_wall_it_lies_far_below_the_truth() -> None:
    event = Repeated(PoissonSampled(0.01, Gaussian(0.4)), 1000)
    assert TAN.is_estimate
    truth = PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert TAN.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE) < truth / 2
