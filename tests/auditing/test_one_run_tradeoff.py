"""ε from one run with many canaries, under the trade-off of Gaussian noise."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats

from lehr.auditing import one_run
from lehr.auditing.gaussian_tradeoff import GAUSSIAN_TRADEOFF
from lehr.auditing.one_run_tradeoff import largest_refuted, lower_bound, refuted
from lehr.errors import InvalidValue
from tests.auditing.simulated import DELTA, REPETITIONS, most_exceptions, mu_of, right_guesses


@cache
def _epsilon(right: int, guesses: int, canaries: int) -> float:
    return lower_bound(right=right, guesses=guesses, canaries=canaries, delta=DELTA).epsilon


@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0])
def test_one_canary_is_refuted_just_where_its_best_guess_is_too_good(mu: float) -> None:
    """One guess about one canary is right with probability Φ(μ/2) at best, and no recursion is needed."""
    best = stats.norm.cdf(mu / 2)
    for error_probability, expected in ((best * 1.001, True), (best * 0.999, False)):
        found = refuted(np.array([mu]), right=1, guesses=1, canaries=1, confidence=1 - error_probability)
        assert found.tolist() == [expected]


@pytest.mark.parametrize("canaries", [2, 5, 30])
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_no_count_of_independent_best_guesses_is_refuted_at_its_own_probability(canaries: int, mu: float) -> None:
    """Canaries that do not meet in the run, each guessed in the best way, are a μ-Gaussian run."""
    law = stats.binom(canaries, stats.norm.cdf(mu / 2))
    for right in range(1, canaries + 1):
        confidence = 1 - law.sf(right - 1) * 0.999
        assert not refuted(np.array([mu]), right=right, guesses=canaries, canaries=canaries, confidence=confidence)[0]


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_no_count_of_the_surest_guesses_is_refuted_at_its_own_frequency(mu: float) -> None:
    counts = right_guesses(mu=mu, canaries=60, guesses=12, repetitions=20_000, seed=3)
    for right in range(6, 13):
        frequency = float(np.mean(counts >= right))
        allowed = frequency - 4 * math.sqrt(frequency / len(counts))
        if allowed > 0:
            given = {"right": right, "guesses": 12, "canaries": 60}
            assert not refuted(np.array([mu]), confidence=1 - allowed, **given)[0]


def test_a_larger_mu_is_harder_to_refute_and_more_right_guesses_refute_more() -> None:
    verdicts = refuted(np.linspace(0.01, 3, 300), right=90, guesses=100, canaries=400, confidence=0.95)
    assert verdicts[0]
    assert not verdicts[-1]
    assert (np.diff(verdicts.astype(int)) <= 0).all()
    found = [largest_refuted(right=right, guesses=100, canaries=400, confidence=0.95) for right in range(101)]
    assert found == sorted(found)


def test_the_largest_refuted_is_next_to_one_that_is_not() -> None:
    given = {"right": 90, "guesses": 100, "canaries": 400}
    mu = largest_refuted(confidence=0.95, **given)
    assert refuted(np.array([mu, mu + 1e-6]), confidence=0.95, **given).tolist() == [True, False]


@pytest.mark.parametrize("right, guesses", [(0, 0), (0, 10), (1, 1), (5, 10), (500, 1000)])
def test_no_more_right_guesses_than_by_chance_certify_nothing(right: int, guesses: int) -> None:
    assert _epsilon(right, guesses, 1000) == 0


@pytest.mark.parametrize("canaries", [10, 1000, 20_000])
def test_guesses_that_are_all_right_certify_a_finite_epsilon(canaries: int) -> None:
    assert 0 < _epsilon(canaries, canaries, canaries) < 60


@pytest.mark.parametrize("right, guesses, canaries", [(45, 50, 1000), (80, 100, 100), (700, 1000, 1000)])
def test_knowing_the_trade_off_certifies_more_than_knowing_nothing(right: int, guesses: int, canaries: int) -> None:
    without = one_run.lower_bound(right=right, guesses=guesses, canaries=canaries, delta=DELTA).epsilon
    assert _epsilon(right, guesses, canaries) > without > 0


@pytest.mark.parametrize("truth, share", [(0.0, 1.0), (0.0, 0.2), (1.0, 0.1), (3.0, 0.1)])
def test_the_bound_is_above_the_truth_no_more_often_than_stated(truth: float, share: float) -> None:
    mu = mu_of(truth) if truth else 0.0
    counts = right_guesses(mu=mu, canaries=500, guesses=int(500 * share), repetitions=REPETITIONS, seed=8)
    assert sum(_epsilon(int(right), int(500 * share), 500) > truth for right in counts) <= most_exceptions()


@pytest.mark.parametrize("canaries, guesses, expected", [(1000, 50, 1.5), (5000, 200, 1.9)])
def test_one_run_certifies_more_than_half_of_three(canaries: int, guesses: int, expected: float) -> None:
    counts = right_guesses(mu=mu_of(3.0), canaries=canaries, guesses=guesses, repetitions=100, seed=9)
    mean = np.mean([_epsilon(int(right), guesses, canaries) for right in counts])
    assert expected < mean < 3


def test_what_is_assumed_is_said() -> None:
    found = lower_bound(right=9, guesses=10, canaries=20, delta=DELTA)
    assert (found.by, found.assumes) == ("one run, trade-off", (GAUSSIAN_TRADEOFF,))


@pytest.mark.parametrize(
    "name, changed",
    [
        ("right", {"right": 11}),
        ("guesses", {"guesses": 21}),
        ("delta", {"delta": 0.0}),
        ("confidence", {"confidence": 0.0}),
    ],
)
def test_counts_that_cannot_be_are_refused_by_name(name: str, changed: dict[str, float]) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name} must be"):
        lower_bound(**{"right": 9, "guesses": 10, "canaries": 20, "delta": DELTA, **changed})  # type: ignore[arg-type]
