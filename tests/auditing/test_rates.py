"""Error counts, and the rates that they allow."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lehr.auditing.rates import errors_above, upper_rate
from tests.auditing.simulated import sides


@pytest.mark.parametrize("count, of", [(0, 1), (0, 1000), (3, 10), (499, 500), (50_000, 100_000)])
def test_at_the_upper_rate_the_count_has_just_the_error_probability(count: int, of: int) -> None:
    rate = float(upper_rate(count, of=of, error_probability=0.025))
    assert stats.binom.cdf(count, of, rate) == pytest.approx(0.025, rel=1e-6)


def test_where_everything_was_an_error_every_rate_is_allowed() -> None:
    assert upper_rate([9, 10], of=10, error_probability=0.05).tolist()[1] == 1.0


def test_an_upper_rate_is_above_zero_and_falls_with_more_data() -> None:
    rates = [float(upper_rate(0, of=of, error_probability=1e-12)) for of in (10, 1000, 10**6)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0


@pytest.mark.parametrize("rate", [0.003, 0.2, 0.5])
def test_the_true_rate_is_above_its_bound_no_more_often_than_stated(rate: float) -> None:
    for of in (20, 300):
        counts = np.arange(of + 1)
        missed = upper_rate(counts, of=of, error_probability=0.05) < rate
        assert stats.binom.pmf(counts[missed], of, rate).sum() <= 0.05


def test_a_score_at_the_threshold_is_not_above_it() -> None:
    errors = errors_above(sides(members=[1.0, 2.0, 2.0, 3.0], others=[0.0, 2.0, np.inf]), np.array([2.0, -np.inf]))
    assert errors.false_positives.tolist() == [1, 3]
    assert errors.false_negatives.tolist() == [3, 0]


def test_both_rates_share_the_error_probability() -> None:
    errors = errors_above(sides(members=[1.0] * 10, others=[0.0] * 20), np.array([0.5]))
    false_positive, false_negative = errors.upper_rates(error_probability=0.1)
    assert false_positive[0] == pytest.approx(1 - 0.05 ** (1 / 20))
    assert false_negative[0] == pytest.approx(1 - 0.05 ** (1 / 10))
