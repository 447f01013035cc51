"""ε from error rates alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lehr.auditing.clopper_pearson import epsilon_from_rates, lower_bound
from lehr.auditing.lower_bound import LowerBound
from lehr.auditing.thresholds import SPLIT, Corrected, Threshold
from lehr.errors import InvalidValue
from tests.auditing.simulated import DELTA, REPETITIONS, exceptions, mean_certified, most_exceptions, sides

_THRESHOLDS = [SPLIT, Corrected(tried=10), 1.5]


def test_the_rates_of_randomised_response_give_its_epsilon() -> None:
    wrong = 1 / (1 + math.exp(2.0))
    assert float(epsilon_from_rates(np.array(wrong), np.array(wrong), delta=0)) == pytest.approx(2.0)


@pytest.mark.parametrize("rates", [(0.01, 0.6), (0.6, 0.01)])
def test_the_better_direction_counts(rates: tuple[float, float]) -> None:
    found = epsilon_from_rates(np.array(rates[0]), np.array(rates[1]), delta=0.1)
    assert float(found) == pytest.approx(math.log(0.3 / 0.01))


def test_rates_that_sum_to_one_show_nothing() -> None:
    rates = np.linspace(0.01, 1, 50)
    assert (epsilon_from_rates(rates, 1 - rates + 0.01, delta=0) <= 0).all()


@pytest.mark.parametrize("threshold", _THRESHOLDS, ids=str)
def test_scores_that_are_all_the_same_show_nothing(threshold: Threshold) -> None:
    assert lower_bound(sides(members=[1.0] * 90, others=[1.0] * 90), delta=DELTA, threshold=threshold).epsilon == 0


@pytest.mark.parametrize("threshold", _THRESHOLDS, ids=str)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.5])
@pytest.mark.parametrize("confidence", [1e-9, 0.95, 1 - 1e-12])
def test_a_perfect_attack_certifies_what_the_number_of_scores_can(
    threshold: Threshold, delta: float, confidence: float
) -> None:
    perfect = sides(members=[math.inf] * 500, others=[-math.inf] * 500)
    found = lower_bound(perfect, delta=delta, confidence=confidence, threshold=threshold)
    assert 0 < found.epsilon < math.log(500 / (1 - math.exp(-1)) * 4)
    assert found == LowerBound(epsilon=found.epsilon, delta=delta, confidence=confidence, by="Clopper-Pearson")


def test_an_attack_that_is_always_wrong_certifies_nothing() -> None:
    assert lower_bound(sides(members=[0.0] * 500, others=[1.0] * 500), delta=DELTA).epsilon == 0


def test_one_score_a_side_certifies_nothing() -> None:
    assert lower_bound(sides(members=[1.0], others=[0.0]), delta=DELTA, threshold=0.5).epsilon == 0


@pytest.mark.parametrize("delta", [-0.1, 1.0, math.nan])
def test_a_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(InvalidValue, match=r"^delta must be"):
        lower_bound(sides(members=[1.0], others=[0.0]), delta=delta)


def test_a_confidence_outside_its_range_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^confidence must be"):
        lower_bound(sides(members=[1.0], others=[0.0]), delta=0.1, confidence=1.0)


@pytest.mark.parametrize("threshold", _THRESHOLDS, ids=str)
@pytest.mark.parametrize("truth", [0.0, 1.0, 3.0])
def test_the_bound_is_above_the_truth_no_more_often_than_stated(threshold: Threshold, truth: float) -> None:
    repetitions = REPETITIONS if truth == 0 else 500
    wrong = exceptions(
        lambda scores: lower_bound(scores, delta=DELTA, threshold=threshold),
        truth=truth,
        per_side=300,
        repetitions=repetitions,
    )
    assert wrong <= most_exceptions(repetitions)


def test_with_the_exact_law_of_randomised_response_the_confidence_is_used_up() -> None:
    """Guesses that are right with e/(1 + e): the bound is above ε = 1 at times, and no more often than stated."""
    rng = np.random.default_rng(3)
    right = math.e / (1 + math.e)
    above = 0
    for _ in range(REPETITIONS):
        scores = sides(members=rng.random(400) < right, others=rng.random(400) >= right)
        above += lower_bound(scores, delta=0, threshold=0.5, confidence=0.8).epsilon > 1
    assert 0 < above <= most_exceptions(confidence=0.8)


@pytest.mark.parametrize("threshold, expected", [(SPLIT, 1.05), (Corrected(tried=10), 1.3)], ids=str)
def test_ten_thousand_scores_a_side_certify_a_good_part_of_three(threshold: Threshold, expected: float) -> None:
    mean = mean_certified(
        lambda scores: lower_bound(scores, delta=DELTA, threshold=threshold),
        truth=3.0,
        per_side=10_000,
        repetitions=20,
    )
    assert mean > expected
