"""ε from one run with many canaries: from the guesses alone, and under the trade-off of Gaussian noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from scipy import optimize, special, stats

from lehr.auditing.bounds import GAUSSIAN_TRADEOFF, LowerBound
from lehr.auditing.one_run import largest_refuted_mu, lower_bound, p_value, refuted_mus, tradeoff_lower_bound
from lehr.errors import InvalidValue
from tests.auditing.simulated import DELTA, REPETITIONS, most_exceptions, mu_of, right_guesses

Certify = Callable[..., LowerBound]
each_bound = pytest.mark.parametrize("certify", [lower_bound, tradeoff_lower_bound])


@cache
def _epsilon(right: int, guesses: int, canaries: int, delta: float = DELTA, certify: Certify = lower_bound) -> float:
    return certify(right=right, guesses=guesses, canaries=canaries, delta=delta).epsilon


def _published(epsilon: float, *, right: int, guesses: int, canaries: int, delta: float) -> float:
    """The p-value as the theorem of Steinke, Nasr & Jagielski 2023 has it."""
    law = stats.binom(guesses, special.expit(epsilon))
    windows = np.arange(1, right + 1)
    largest = np.max((law.cdf(right - 1) - law.cdf(right - 1 - windows)) / windows)
    return float(min(1.0, law.sf(right - 1) + 2 * canaries * delta * largest))


def _most_likely(right: int, *, canaries: int, epsilon: float, delta: float) -> float:
    """The probability of so many right guesses under the worst of all (ε, δ) mechanisms, by linear programming.

    The unknowns are the probabilities of each row of guesses under each row of coins.
    """
    rows = np.array(list(itertools.product((0, 1), repeat=canaries)))
    events = np.array(list(itertools.product((0.0, 1.0), repeat=len(rows))))
    near = [(a, b) for a, b in itertools.permutations(range(len(rows)), 2) if np.sum(rows[a] != rows[b]) == 1]
    limits = np.zeros((len(near), len(events), len(rows), len(rows)))
    for which, (here, there) in enumerate(near):
        limits[which, :, here] = events
        limits[which, :, there] = -math.exp(epsilon) * events
    enough = (rows[:, None] == rows[None]).sum(axis=2) >= right
    found = optimize.linprog(
        -enough.ravel().astype(float) / len(rows),
        A_ub=limits.reshape(-1, len(rows) ** 2),
        b_ub=np.full(len(near) * len(events), delta),
        A_eq=np.kron(np.eye(len(rows)), np.ones(len(rows))),
        b_eq=np.ones(len(rows)),
    )
    assert found.status == 0
    return -float(found.fun)


@pytest.mark.parametrize("guesses", [1, 7, 60])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
def test_without_delta_the_p_value_is_that_of_randomised_response_exactly(guesses: int, epsilon: float) -> None:
    for right in range(guesses + 1):
        exact = stats.binom.sf(right - 1, guesses, special.expit(epsilon))
        found = p_value(epsilon, right=right, guesses=guesses, canaries=100, delta=0.0)
        assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-5, 1e-3, 0.05])
@pytest.mark.parametrize("canaries", [1, 2, 5, 40])
def test_runs_that_give_coins_away_with_probability_delta_keep_the_p_value(delta: float, canaries: int) -> None:
    """With probability δ all coins are given away at once, or each by itself; otherwise it is randomised response."""
    right_probability = special.expit(1.0)
    for right in range(1, canaries + 1):
        bound = p_value(1.0, right=right, guesses=canaries, canaries=canaries, delta=delta)
        all_at_once = delta + (1 - delta) * stats.binom.sf(right - 1, canaries, right_probability)
        one_by_one = stats.binom.sf(right - 1, canaries, delta + (1 - delta) * right_probability)
        assert max(all_at_once, one_by_one) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("canaries, delta", [(1, 0.1), (2, 0.1), (3, 0.02)])
def test_no_mechanism_at_all_has_more_right_guesses_than_the_p_value_says(canaries: int, delta: float) -> None:
    for right in range(1, canaries + 1):
        worst = _most_likely(right, canaries=canaries, epsilon=1.0, delta=delta)
        assert worst <= p_value(1.0, right=right, guesses=canaries, canaries=canaries, delta=delta) * (1 + 1e-9)
        assert worst > stats.binom.sf(right - 1, canaries, special.expit(1.0))


@pytest.mark.parametrize("guesses", [1, 3, 20, 400])
def test_the_p_value_is_never_above_the_published_one_where_it_can_refute(guesses: int) -> None:
    for epsilon in (0.0, 0.5, 2.0, 5.0):
        for right in range(1, guesses + 1, max(1, guesses // 20)):
            given = {"right": right, "guesses": guesses, "canaries": 2 * guesses, "delta": 1e-4}
            published = _published(epsilon, **given)  # type: ignore[arg-type]
            if published <= 0.5:
                assert p_value(epsilon, **given) <= published * (1 + 1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("guesses", [2000, 10**6])
def test_where_the_tail_is_too_small_for_a_double_delta_still_counts(guesses: int) -> None:
    found = p_value(0.0, right=guesses, guesses=guesses, canaries=2 * guesses, delta=0.01)
    assert found == pytest.approx(0.02, rel=1e-6)
    nearly_all = p_value(0.0, right=guesses - 1, guesses=guesses, canaries=2 * guesses, delta=0.01)
    assert 0.02 < nearly_all < 0.0201


@pytest.mark.parametrize("epsilon", [5.0, 1000.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_count_far_below_its_mean_refutes_nothing(epsilon: float, delta: float) -> None:
    assert p_value(epsilon, right=1, guesses=10**6, canaries=10**6, delta=delta) == 1


def test_the_bound_is_the_epsilon_at_which_the_p_value_reaches_the_error_probability() -> None:
    found = lower_bound(right=80, guesses=100, canaries=300, delta=1e-4, confidence=0.9)
    assert found == LowerBound(epsilon=found.epsilon, delta=1e-4, confidence=0.9, by="one run")
    just_above = p_value(found.epsilon + 1e-9, right=80, guesses=100, canaries=300, delta=1e-4)
    assert p_value(found.epsilon, right=80, guesses=100, canaries=300, delta=1e-4) <= 1 - 0.9 < just_above


@each_bound
@pytest.mark.parametrize("right, guesses", [(0, 0), (0, 10), (1, 1), (5, 10), (500, 1000)])
def test_no_more_right_guesses_than_by_chance_certify_nothing(right: int, guesses: int, certify: Certify) -> None:
    assert _epsilon(right, guesses, 1000, certify=certify) == 0


@pytest.mark.parametrize("canaries", [10, 1000, 10**5])
@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_guesses_that_are_all_right_certify_what_their_number_can(canaries: int, delta: float) -> None:
    exact = math.log(0.05 ** (1 / canaries)) - math.log(-math.expm1(math.log(0.05) / canaries))
    assert _epsilon(canaries, canaries, canaries, delta) == pytest.approx(exact, rel=1e-3)


def test_a_delta_that_explains_every_right_guess_leaves_nothing_to_certify() -> None:
    assert _epsilon(100, 100, 100, 0.05) == 0


@each_bound
@pytest.mark.parametrize("truth, share", [(0.0, 1.0), (0.0, 0.2), (1.0, 0.1), (3.0, 0.1)])
def test_the_bound_is_above_the_truth_no_more_often_than_stated(truth: float, share: float, certify: Certify) -> None:
    mu, guesses = mu_of(truth) if truth else 0.0, int(500 * share)
    counts = right_guesses(mu=mu, canaries=500, guesses=guesses, repetitions=REPETITIONS, seed=8)
    assert sum(_epsilon(int(right), guesses, 500, certify=certify) > truth for right in counts) <= most_exceptions()


def test_randomised_response_uses_the_confidence_up() -> None:
    counts = np.random.default_rng(4).binomial(500, special.expit(1.0), REPETITIONS)
    above = sum(_epsilon(int(right), 500, 500, 0.0) > 1 for right in counts)
    assert stats.binom.ppf(0.001, REPETITIONS, 0.03) <= above <= most_exceptions()


@pytest.mark.parametrize("canaries, guesses, least", [(1000, 50, (1.1, 1.5)), (5000, 200, (1.4, 1.9))])
def test_one_run_certifies_a_good_part_of_three(canaries: int, guesses: int, least: tuple[float, float]) -> None:
    counts = right_guesses(mu=mu_of(3.0), canaries=canaries, guesses=guesses, repetitions=100, seed=9)
    for certify, expected in zip((lower_bound, tradeoff_lower_bound), least, strict=True):
        mean = np.mean([_epsilon(int(right), guesses, canaries, certify=certify) for right in counts])
        assert expected < mean < 3


@each_bound
@pytest.mark.parametrize(
    "name, bad",
    [
        *(("right", bad) for bad in (11, -1)),
        *(("guesses", bad) for bad in (21, 9.5)),
        ("canaries", 0),
        *(("delta", bad) for bad in (1.0, math.nan)),
        *(("confidence", bad) for bad in (0.0, 1.0)),
    ],
)
def test_bad_counts_are_refused_by_name(name: str, bad: float, certify: Certify) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name}"):
        certify(**{"right": 9, "guesses": 10, "canaries": 20, "delta": DELTA, name: bad})


# Under the trade-off of Gaussian noise


@pytest.mark.parametrize("mu", [0.1, 0.7, 2.0])
def test_one_canary_is_refuted_just_where_its_best_guess_is_too_good(mu: float) -> None:
    """One guess about one canary is right with probability Φ(μ/2) at best, and no recursion is needed."""
    best = stats.norm.cdf(mu / 2)
    for error_probability, expected in ((best * 1.001, True), (best * 0.999, False)):
        found = refuted_mus(np.array([mu]), right=1, guesses=1, canaries=1, confidence=1 - error_probability)
        assert found.tolist() == [expected]


@pytest.mark.parametrize("canaries", [2, 5, 30])
@pytest.mark.parametrize("mu", [0.3, 1.0])
def test_no_count_of_independent_best_guesses_is_refuted_at_its_own_probability(canaries: int, mu: float) -> None:
    """Canaries that do not meet in the run, each guessed in the best way, are a μ-Gaussian run."""
    law = stats.binom(canaries, stats.norm.cdf(mu / 2))
    for right in range(1, canaries + 1):
        given = {"right": right, "guesses": canaries, "canaries": canaries}
        assert not refuted_mus(np.array([mu]), confidence=1 - law.sf(right - 1) * 0.999, **given)[0]


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_no_count_of_the_surest_guesses_is_refuted_at_its_own_frequency(mu: float) -> None:
    counts = right_guesses(mu=mu, canaries=60, guesses=12, repetitions=20_000, seed=3)
    for right in range(6, 13):
        frequency = float(np.mean(counts >= right))
        allowed = frequency - 4 * math.sqrt(frequency / len(counts))
        if allowed > 0:
            given = {"right": right, "guesses": 12, "canaries": 60}
            assert not refuted_mus(np.array([mu]), confidence=1 - allowed, **given)[0]


def test_a_larger_mu_is_harder_to_refute_and_more_right_guesses_refute_more() -> None:
    given = {"guesses": 100, "canaries": 400, "confidence": 0.95}
    verdicts = refuted_mus(np.linspace(0.01, 3, 300), right=90, **given)  # type: ignore[arg-type]
    assert verdicts[0]
    assert not verdicts[-1]
    assert (np.diff(verdicts.astype(int)) <= 0).all()
    found = [largest_refuted_mu(right=right, **given) for right in range(101)]  # type: ignore[arg-type]
    assert found == sorted(found)
    around = np.array([found[90], found[90] + 1e-6])
    assert refuted_mus(around, right=90, **given).tolist() == [True, False]  # type: ignore[arg-type]


@pytest.mark.parametrize("canaries", [10, 1000, 20_000])
def test_guesses_that_are_all_right_certify_a_finite_epsilon(canaries: int) -> None:
    assert 0 < _epsilon(canaries, canaries, canaries, certify=tradeoff_lower_bound) < 60


@pytest.mark.parametrize("right, guesses, canaries", [(45, 50, 1000), (80, 100, 100), (700, 1000, 1000)])
def test_knowing_the_trade_off_certifies_more_than_knowing_nothing(right: int, guesses: int, canaries: int) -> None:
    found = tradeoff_lower_bound(right=right, guesses=guesses, canaries=canaries, delta=DELTA)
    assert found.epsilon > _epsilon(right, guesses, canaries) > 0
    assert (found.by, found.assumes) == ("one run, trade-off", (GAUSSIAN_TRADEOFF,))
