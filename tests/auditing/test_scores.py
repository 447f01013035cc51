"""Scores, error rates, and thresholds that do not spoil the confidence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lehr.auditing.bounds import clopper_pearson
from lehr.auditing.scores import Floats, Scores, errors_above, pooled, upper_rate
from lehr.auditing.thresholds import SPLIT, Corrected, Threshold, certified, halves
from lehr.errors import InvalidValue
from tests.auditing.simulated import gaussian_scores, most_exceptions, sides


def test_scores_are_double_precision_copies_that_cannot_be_changed() -> None:
    given = np.zeros(3, dtype=np.float32)
    scores = Scores(members=given, others=[1, math.inf])  # type: ignore[arg-type]
    given[0] = 1
    assert scores.members.dtype == scores.others.dtype == np.float64
    assert (scores.members.tolist(), scores.others.tolist()) == ([0.0, 0.0, 0.0], [1.0, math.inf])
    with pytest.raises(ValueError, match="read-only"):
        scores.members[0] = 1
    both = pooled([scores, sides(members=[4.0], others=[5.0])])
    assert (both.members.tolist(), both.others.tolist()) == ([0.0, 0.0, 0.0, 4.0], [1.0, math.inf, 5.0])


@pytest.mark.parametrize("bad", [[], [[1.0]], 1.0, [math.nan], [0.0, math.nan], ["a"], [None, "b"], [10**400]])
@pytest.mark.parametrize("side", ["members", "others"])
def test_anything_but_a_row_of_numbers_is_refused_by_name(side: str, bad: object) -> None:
    with pytest.raises(InvalidValue, match=f"^{side}"):
        Scores(**{"members": [1.0], "others": [0.0], side: bad})  # type: ignore[arg-type]


@pytest.mark.parametrize("count, of", [(0, 1), (0, 1000), (3, 10), (499, 500), (50_000, 100_000)])
def test_at_the_upper_rate_the_count_has_just_the_error_probability(count: int, of: int) -> None:
    rate = float(upper_rate(count, of=of, error_probability=0.025))
    assert stats.binom.cdf(count, of, rate) == pytest.approx(0.025, rel=1e-6)


def test_an_upper_rate_is_one_where_all_are_errors_and_falls_with_more_data() -> None:
    assert upper_rate([9, 10], of=10, error_probability=0.05).tolist()[1] == 1.0
    rates = [float(upper_rate(0, of=of, error_probability=1e-12)) for of in (10, 1000, 10**6)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


@pytest.mark.parametrize("rate", [0.003, 0.2, 0.5])
def test_the_true_rate_is_above_its_bound_no_more_often_than_stated(rate: float) -> None:
    for of in (20, 300):
        counts = np.arange(of + 1)
        missed = upper_rate(counts, of=of, error_probability=0.05) < rate
        assert stats.binom.pmf(counts[missed], of, rate).sum() <= 0.05


def test_errors_are_counted_above_the_threshold_and_share_the_error_probability() -> None:
    errors = errors_above(sides(members=[1.0, 2.0, 2.0, 3.0], others=[0.0, 2.0, np.inf]), np.array([2.0, -np.inf]))
    assert errors.false_positives.tolist() == [1, 3]
    assert errors.false_negatives.tolist() == [3, 0]
    errors = errors_above(sides(members=[1.0] * 10, others=[0.0] * 20), np.array([0.5]))
    false_positive, false_negative = errors.upper_rates(error_probability=0.1)
    assert false_positive[0] == pytest.approx(1 - 0.05 ** (1 / 20))
    assert false_negative[0] == pytest.approx(1 - 0.05 ** (1 / 10))


def distinguishes(false_positive: Floats, false_negative: Floats) -> Floats:
    return 1 - false_positive - false_negative


def test_a_fixed_threshold_is_used_on_all_scores() -> None:
    scores = sides(members=[1.0] * 40, others=[0.0] * 30)
    found = certified(scores, threshold=0.5, confidence=0.9, certifies=distinguishes)
    assert found == pytest.approx(0.05 ** (1 / 30) + 0.05 ** (1 / 40) - 1)


def test_the_halves_hold_every_score_once_by_position() -> None:
    members, others = np.arange(11.0), np.arange(100.0, 120.0)
    first, second = halves(sides(members=members, others=others))
    assert (len(first.members), len(second.members)) == (5, 6)
    assert sorted([*first.members, *second.members]) == members.tolist()
    assert sorted([*first.others, *second.others]) == others.tolist()
    shifted, _ = halves(sides(members=members + 7, others=-others))
    assert (first.members + 7).tolist() == shifted.members.tolist()
    assert (-first.others).tolist() == shifted.others.tolist()


def test_sorted_scores_are_not_halved_into_two_like_rows() -> None:
    first, _ = halves(sides(members=np.arange(10_000.0), others=[0.0, 1.0]))
    # Every second position would leave a gap of 2 everywhere; random halves have gaps of 1 as often as all others.
    assert 0.45 < float(np.mean(np.diff(np.sort(first.members)) == 1)) < 0.55


def test_the_half_that_chooses_has_no_say_in_what_is_certified() -> None:
    scores = sides(members=np.arange(40.0), others=np.arange(40.0) - 20)
    choosing, certifying = halves(scores)
    found = certified(scores, threshold=SPLIT, confidence=0.9, certifies=distinguishes)
    thresholds = np.sort(np.concatenate([choosing.members, choosing.others]))
    rates = errors_above(certifying, thresholds).upper_rates(error_probability=1 - 0.9)
    assert found in distinguishes(*rates).tolist()


def test_bad_thresholds_are_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match=r"^scores"):
        clopper_pearson(sides(members=[1.0], others=[0.0] * 5), delta=0)  # one score cannot be split
    for bad in (math.nan, math.inf, "split", None, True):
        with pytest.raises(InvalidValue, match=r"^threshold"):
            clopper_pearson(sides(members=[1.0], others=[0.0]), delta=0, threshold=bad)  # type: ignore[arg-type]
    for tried in (0, -1, 1.5, True):
        with pytest.raises(InvalidValue, match=r"^tried"):
            Corrected(tried=tried)  # type: ignore[arg-type]


def test_more_tries_cost_confidence_at_each() -> None:
    """With two scores a side every rank is the same, so that only the correction is left."""
    scores = sides(members=[1.0, 1.0], others=[0.0, 0.0])
    one, many = (
        certified(scores, threshold=Corrected(tried=tried), confidence=0.9, certifies=distinguishes)
        for tried in (1, 50)
    )
    assert one == pytest.approx(2 * 0.05**0.5 - 1)
    assert many == pytest.approx(2 * (0.1 / 100) ** 0.5 - 1)


def test_tied_scores_count_by_the_rank_that_was_fixed_and_not_by_the_errors_seen() -> None:
    """The middle of a hundred others who are all alike has none above it, but up to 49 could have been."""
    scores = sides(members=[1.0] * 100, others=[0.0] * 100)
    found = certified(scores, threshold=Corrected(tried=1), confidence=0.9, certifies=distinguishes)
    of_the_rank, of_none = upper_rate([49, 0], of=100, error_probability=0.05)
    assert found == pytest.approx(1 - of_the_rank - of_none)


@pytest.mark.parametrize("threshold", [SPLIT, Corrected(tried=1), Corrected(tried=20)], ids=str)
@pytest.mark.parametrize("decimals", [1, 9])
def test_the_rates_behind_the_best_value_hold_as_often_as_stated(threshold: Threshold, decimals: int) -> None:
    """Null scores, tied and not: 1 − FPR − FNR is 0 at every threshold, so anything above it is an exception.

    The confidence is low, so that a correction which was too small by little would show.
    """
    exceptions = 0
    for scores in gaussian_scores(mu=0.0, per_side=60, repetitions=2000, seed=5):
        rounded = sides(members=scores.members.round(decimals), others=scores.others.round(decimals))
        exceptions += certified(rounded, threshold=threshold, confidence=0.5, certifies=distinguishes) > 0
    assert exceptions <= most_exceptions(confidence=0.5)


def test_a_threshold_picked_on_the_scores_it_is_used_on_would_break_the_confidence() -> None:
    exceptions = 0
    for scores in gaussian_scores(mu=0.0, per_side=60, repetitions=500, seed=5):
        rates = errors_above(scores, np.concatenate([scores.members, scores.others])).upper_rates(error_probability=0.5)
        exceptions += bool((distinguishes(*rates) > 0).any())
    assert exceptions > most_exceptions(500, confidence=0.5)
