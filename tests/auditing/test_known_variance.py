"""ε from Gaussian scores of a known standard deviation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lehr.auditing.known_variance import ASSUMES, lower_bound, mean_p_value, mu_at_least, variance_p_value
from lehr.errors import InvalidValue
from tests.auditing.simulated import CONFIDENCE, DELTA, exceptions, mean_certified, most_exceptions, mu_of, sides

_NUMBERS = np.random.default_rng(0).normal(2.0, 3.0, 500)


def test_the_scale_of_the_scores_does_not_matter() -> None:
    scores = sides(members=_NUMBERS + 6, others=_NUMBERS)
    small = sides(members=scores.members * 1e-6, others=scores.others * 1e-6)
    assert mu_at_least(scores, std=3.0, confidence=0.9) == pytest.approx(
        mu_at_least(small, std=3e-6, confidence=0.9), rel=1e-9
    )


def test_at_even_confidence_the_bound_is_the_estimate() -> None:
    assert mu_at_least(sides(members=[3.0, 5.0], others=[1.0]), std=2.0, confidence=0.5) == pytest.approx(1.5)


def test_scores_that_are_all_the_same_show_nothing() -> None:
    found = lower_bound(sides(members=[1.0] * 9, others=[1.0] * 9), std=1.0, delta=DELTA)
    assert (found.epsilon, found.assumes, found.by) == (0.0, ASSUMES, "known variance")


def test_means_beyond_all_measure_have_a_finite_epsilon() -> None:
    assert 4e11 < lower_bound(sides(members=[1e300], others=[-1e300]), std=1e-5, delta=DELTA).epsilon < math.inf


@pytest.mark.parametrize("per_side", [1, 30, 1000])
def test_null_scores_certify_something_just_as_often_as_stated(per_side: int) -> None:
    """The interval is exact: not only no more often, but no less either."""
    rng = np.random.default_rng(per_side)
    above = sum(
        mu_at_least(sides(members=one, others=other), std=1.0, confidence=CONFIDENCE) > 0
        for one, other in rng.normal(0, 1, (2000, 2, per_side))
    )
    assert stats.binom.ppf(0.001, 2000, 0.05) <= above <= most_exceptions()


@pytest.mark.parametrize("truth", [0.0, 1.0, 3.0])
def test_the_bound_is_above_the_truth_no_more_often_than_stated(truth: float) -> None:
    repetitions = 2000 if truth == 0 else 400
    wrong = exceptions(
        lambda scores: lower_bound(scores, std=1.0, delta=DELTA), truth=truth, per_side=100, repetitions=repetitions
    )
    assert wrong <= most_exceptions(repetitions)


@pytest.mark.parametrize("per_side, expected", [(50, 1.35), (200, 2.15), (1000, 2.6)])
def test_few_scores_certify_most_of_three(per_side: int, expected: float) -> None:
    mean = mean_certified(
        lambda scores: lower_bound(scores, std=1.0, delta=DELTA), truth=3.0, per_side=per_side, repetitions=100
    )
    assert expected < mean < 3


def test_noise_that_was_halved_is_refuted() -> None:
    mean = mean_certified(
        lambda scores: lower_bound(
            sides(members=scores.members + mu_of(3.0), others=scores.others), std=1.0, delta=DELTA
        ),
        truth=3.0,
        per_side=1000,
        repetitions=10,
    )
    assert mean > 6


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_standard_deviation_is_refused(std: float) -> None:
    with pytest.raises(InvalidValue, match=r"^std must be"):
        lower_bound(sides(members=[1.0], others=[0.0]), std=std, delta=DELTA)
    with pytest.raises(InvalidValue, match=r"^std must be"):
        variance_p_value(_NUMBERS, std=std)
    with pytest.raises(InvalidValue, match=r"^std must be"):
        mean_p_value(_NUMBERS, mean=0.0, std=std)


def test_an_infinite_score_is_refused_since_no_gaussian_has_one() -> None:
    with pytest.raises(InvalidValue, match=r"^members must be a row of finite numbers"):
        lower_bound(sides(members=[math.inf], others=[0.0]), std=1.0, delta=DELTA)


def test_delta_and_confidence_outside_their_ranges_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^delta must be"):
        lower_bound(sides(members=[1.0], others=[0.0]), std=1.0, delta=0.0)
    with pytest.raises(InvalidValue, match=r"^confidence must be"):
        lower_bound(sides(members=[1.0], others=[0.0]), std=1.0, delta=0.1, confidence=1.0)


def test_the_tests_accept_the_stated_law_and_reject_another() -> None:
    assert variance_p_value(_NUMBERS, std=3.0) > 0.01
    assert variance_p_value(_NUMBERS, std=2.0) < 1e-6
    assert variance_p_value(_NUMBERS, std=4.5) < 1e-6
    assert mean_p_value(_NUMBERS, mean=2.0, std=3.0) > 0.01
    assert mean_p_value(_NUMBERS, mean=3.0, std=3.0) < 1e-6
    assert mean_p_value(_NUMBERS, mean=1.0, std=3.0) < 1e-6


def test_the_p_values_are_uniform_under_the_stated_law() -> None:
    rows = np.random.default_rng(1).normal(1.0, 2.0, (1000, 20))
    assert stats.kstest([variance_p_value(row, std=2.0) for row in rows], "uniform").pvalue > 0.001
    assert stats.kstest([mean_p_value(row, mean=1.0, std=2.0) for row in rows], "uniform").pvalue > 0.001


def test_one_value_has_no_variance_and_nan_no_test() -> None:
    with pytest.raises(InvalidValue, match=r"^values must be two or more numbers"):
        variance_p_value(np.ones(1), std=1.0)
    with pytest.raises(InvalidValue, match=r"^values must be a row of finite numbers"):
        mean_p_value(np.array([math.nan]), mean=0.0, std=1.0)
    with pytest.raises(InvalidValue, match=r"^mean must be"):
        mean_p_value(np.ones(3), mean=math.nan, std=1.0)
