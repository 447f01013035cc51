"""ε from error rates, under the trade-off of Gaussian noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lehr.accounting.gaussian_mechanism import gaussian_epsilon
from lehr.auditing.gaussian_tradeoff import GAUSSIAN_TRADEOFF, epsilon_from_mu, lower_bound, mu_from_rates
from lehr.auditing.thresholds import SPLIT, Corrected, Threshold
from lehr.errors import InvalidValue
from tests.auditing.simulated import DELTA, REPETITIONS, exceptions, mean_certified, most_exceptions, sides

_THRESHOLDS = [SPLIT, Corrected(tried=10), 0.4]


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_rates_on_the_curve_of_mu_give_mu(mu: float) -> None:
    thresholds = np.linspace(-2, 4, 20)
    found = mu_from_rates(stats.norm.sf(thresholds), stats.norm.cdf(thresholds - mu))
    assert found == pytest.approx(np.full(20, mu))


def test_a_rate_of_one_certifies_nothing() -> None:
    assert float(mu_from_rates(np.array(1.0), np.array(1e-9))) == -math.inf


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0, 100.0])
def test_epsilon_is_just_below_that_of_the_mechanism(mu: float) -> None:
    never_below = gaussian_epsilon(mu * mu, delta=DELTA)
    assert never_below * (1 - 1e-8) - 1e-8 < epsilon_from_mu(mu, delta=DELTA) < never_below


@pytest.mark.parametrize("mu", [0.0, -1.0, -math.inf, 1e-9])
def test_no_mu_is_no_epsilon(mu: float) -> None:
    assert epsilon_from_mu(mu, delta=0.01) == 0


@pytest.mark.parametrize("mu", [1e6, 1e200, math.inf])
def test_an_enormous_mu_has_a_finite_epsilon(mu: float) -> None:
    assert 4e11 < epsilon_from_mu(mu, delta=DELTA) < math.inf


@pytest.mark.parametrize("threshold", _THRESHOLDS, ids=str)
def test_scores_that_are_all_the_same_show_nothing(threshold: Threshold) -> None:
    assert lower_bound(sides(members=[1.0] * 90, others=[1.0] * 90), delta=DELTA, threshold=threshold).epsilon == 0


def test_a_perfect_attack_certifies_what_the_number_of_scores_can() -> None:
    found = [
        lower_bound(sides(members=[math.inf] * size, others=[-math.inf] * size), delta=DELTA, threshold=0.0)
        for size in (1, 10, 1000)
    ]
    assert found[0].epsilon == 0 < found[1].epsilon < found[2].epsilon < 60
    assert found[0].assumes == (GAUSSIAN_TRADEOFF,)


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_a_delta_at_which_no_gaussian_is_finite_is_refused(delta: float) -> None:
    with pytest.raises(InvalidValue, match=r"^delta must be"):
        lower_bound(sides(members=[1.0], others=[0.0]), delta=delta)


def test_a_confidence_outside_its_range_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^confidence must be"):
        lower_bound(sides(members=[1.0], others=[0.0]), delta=0.1, confidence=0.0)


@pytest.mark.parametrize("threshold", _THRESHOLDS, ids=str)
@pytest.mark.parametrize("truth", [0.0, 1.0, 3.0])
def test_the_bound_is_above_the_truth_no_more_often_than_stated(threshold: Threshold, truth: float) -> None:
    repetitions = REPETITIONS if truth == 0 else 400
    wrong = exceptions(
        lambda scores: lower_bound(scores, delta=DELTA, threshold=threshold),
        truth=truth,
        per_side=300,
        repetitions=repetitions,
    )
    assert wrong <= most_exceptions(repetitions)


@pytest.mark.parametrize("threshold, expected", [(SPLIT, 1.65), (Corrected(tried=10), 1.95)], ids=str)
def test_a_thousand_scores_a_side_certify_more_than_half_of_three(threshold: Threshold, expected: float) -> None:
    mean = mean_certified(
        lambda scores: lower_bound(scores, delta=DELTA, threshold=threshold), truth=3.0, per_side=1000, repetitions=100
    )
    assert mean > expected
