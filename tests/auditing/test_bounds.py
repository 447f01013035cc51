"""Lower bounds on ε: above the truth no more often than stated, close to it, and zero for scores that say nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lehr import accounting
from lehr.accounting.closed_forms import gaussian_epsilon
from lehr.accounting.events import Gaussian, PoissonSampled
from lehr.auditing.bounds import (
    GAUSSIAN_TRADEOFF,
    KNOWN_VARIANCE,
    SAMPLED_GAUSSIAN,
    LowerBound,
    clopper_pearson,
    epsilon_from_mu,
    epsilon_from_parts,
    epsilon_from_rates,
    gaussian_tradeoff,
    known_variance,
    mean_p_value,
    mu_at_least,
    mu_from_rates,
    sampled_gaussian,
    variance_p_value,
)
from lehr.auditing.scores import Scores
from lehr.auditing.thresholds import SPLIT, Corrected, Threshold
from lehr.errors import InvalidValue
from tests.auditing.simulated import (
    CONFIDENCE,
    DELTA,
    REPETITIONS,
    exceptions,
    mean_certified,
    most_exceptions,
    mu_of,
    sides,
)

Bound = Callable[..., LowerBound]
BOUNDS: dict[str, Bound] = {
    **{f"Clopper-Pearson, {how}": partial(clopper_pearson, threshold=how) for how in (SPLIT, Corrected(tried=10), 1.5)},
    **{f"Gaussian, {how}": partial(gaussian_tradeoff, threshold=how) for how in (SPLIT, Corrected(tried=10), 0.4)},
    "known variance": partial(known_variance, std=1.0),
}
each_bound = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)


@pytest.mark.parametrize(
    "name, bad",
    [
        *(("epsilon", bad) for bad in (-0.1, math.inf, math.nan)),
        *(("delta", bad) for bad in (1.0, -1e-9, math.nan)),
        *(("confidence", bad) for bad in (0.0, 1.0, math.nan)),
        *(("by", " "), ("assumes", "one sentence"), ("assumes", ("",))),
    ],
)
def test_a_bound_that_makes_no_sense_is_refused_by_name(name: str, bad: object) -> None:
    sound: dict[str, Any] = {"epsilon": 0.0, "delta": 0.0, "confidence": 0.95, "by": "a bound"}
    assert LowerBound(**sound).assumes == ()
    with pytest.raises(InvalidValue, match=f"^{name}"):
        LowerBound(**sound | {name: bad})


# Every bound from the scores of an attack


@each_bound
def test_scores_that_are_all_the_same_show_nothing(bound: Bound) -> None:
    assert bound(sides(members=[1.0] * 90, others=[1.0] * 90), delta=DELTA).epsilon == 0


@each_bound
@pytest.mark.parametrize("truth", [0.0, 1.0, 3.0])
def test_the_bound_is_above_the_truth_no_more_often_than_stated(bound: Bound, truth: float) -> None:
    repetitions = REPETITIONS if truth == 0 else 400
    wrong = exceptions(partial(bound, delta=DELTA), truth=truth, per_side=300, repetitions=repetitions)
    assert wrong <= most_exceptions(repetitions)


@pytest.mark.parametrize(
    "name, per_side, repetitions, expected",
    [
        (f"Clopper-Pearson, {SPLIT}", 10_000, 20, 1.05),
        (f"Clopper-Pearson, {Corrected(tried=10)}", 10_000, 20, 1.3),
        (f"Gaussian, {SPLIT}", 1000, 100, 1.65),
        (f"Gaussian, {Corrected(tried=10)}", 1000, 100, 1.95),
        ("known variance", 50, 100, 1.35),
        ("known variance", 200, 100, 2.15),
        ("known variance", 1000, 100, 2.6),
    ],
)
def test_a_good_part_of_three_is_certified(name: str, per_side: int, repetitions: int, expected: float) -> None:
    bound = partial(BOUNDS[name], delta=DELTA)
    assert expected < mean_certified(bound, truth=3.0, per_side=per_side, repetitions=repetitions) < 3


@pytest.mark.parametrize(
    "bound, name, bad",
    [
        *((clopper_pearson, "delta", bad) for bad in (-0.1, 1.0, math.nan)),
        *((gaussian_tradeoff, "delta", bad) for bad in (0.0, 1.0, math.nan)),  # no ε of a Gaussian is finite at 0
        *((gaussian_tradeoff, "mu_share", bad) for bad in (-0.1, 1.1, math.nan)),
        (partial(known_variance, std=1.0), "delta", 0.0),
        *((bound, "confidence", 1.0) for bound in (clopper_pearson, gaussian_tradeoff, partial(known_variance, std=1))),
        *((known_variance, "std", bad) for bad in (0.0, -1.0, math.nan, math.inf)),
    ],
)
def test_numbers_outside_their_range_are_refused(bound: Bound, name: str, bad: float) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name}"):
        bound(sides(members=[1.0], others=[0.0]), **{"delta": 0.1, name: bad})


# Clopper-Pearson


def test_rates_give_the_epsilon_of_the_better_direction() -> None:
    wrong = np.array(1 / (1 + math.exp(2.0)))
    assert float(epsilon_from_rates(wrong, wrong, delta=0)) == pytest.approx(2.0)  # randomised response
    for rates in ((0.01, 0.6), (0.6, 0.01)):
        found = epsilon_from_rates(*map(np.array, rates), delta=0.1)
        assert float(found) == pytest.approx(math.log(0.3 / 0.01))
    chance = np.linspace(0.01, 1, 50)  # rates that sum to one show nothing
    assert (epsilon_from_rates(chance, 1 - chance + 0.01, delta=0) <= 0).all()


@pytest.mark.parametrize("threshold", [SPLIT, Corrected(tried=10), 1.5], ids=str)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.5])
@pytest.mark.parametrize("confidence", [1e-9, 0.95, 1 - 1e-12])
def test_a_perfect_attack_certifies_what_the_number_of_scores_can(
    threshold: Threshold, delta: float, confidence: float
) -> None:
    perfect = sides(members=[math.inf] * 500, others=[-math.inf] * 500)
    found = clopper_pearson(perfect, delta=delta, confidence=confidence, threshold=threshold)
    assert 0 < found.epsilon < math.log(500 / (1 - math.exp(-1)) * 4)
    assert found == LowerBound(epsilon=found.epsilon, delta=delta, confidence=confidence, by="Clopper-Pearson")


def test_an_attack_that_is_always_wrong_or_has_one_score_a_side_certifies_nothing() -> None:
    assert clopper_pearson(sides(members=[0.0] * 500, others=[1.0] * 500), delta=DELTA).epsilon == 0
    assert clopper_pearson(sides(members=[1.0], others=[0.0]), delta=DELTA, threshold=0.5).epsilon == 0


def test_with_the_exact_law_of_randomised_response_the_confidence_is_used_up() -> None:
    """Guesses that are right with e/(1 + e): the bound is above ε = 1 at times, and no more often than stated."""
    rng = np.random.default_rng(3)
    right = math.e / (1 + math.e)
    above = 0
    for _ in range(REPETITIONS):
        scores = sides(members=rng.random(400) < right, others=rng.random(400) >= right)
        above += clopper_pearson(scores, delta=0, threshold=0.5, confidence=0.8).epsilon > 1
    assert 0 < above <= most_exceptions(confidence=0.8)


# The trade-off of Gaussian noise


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_rates_on_the_curve_of_mu_give_mu(mu: float) -> None:
    thresholds = np.linspace(-2, 4, 20)
    found = mu_from_rates(stats.norm.sf(thresholds), stats.norm.cdf(thresholds - mu))
    assert found == pytest.approx(np.full(20, mu))
    assert float(mu_from_rates(np.array(1.0), np.array(1e-9))) == -math.inf


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0, 100.0])
def test_epsilon_is_just_below_that_of_the_mechanism(mu: float) -> None:
    never_below = gaussian_epsilon(mu * mu, delta=DELTA)
    assert never_below * (1 - 1e-8) - 1e-8 < epsilon_from_mu(mu, delta=DELTA) < never_below


def test_epsilon_of_no_mu_is_zero_and_of_an_enormous_one_finite() -> None:
    assert {epsilon_from_mu(mu, delta=0.01) for mu in (0.0, -1.0, -math.inf, 1e-9)} == {0}
    for mu in (1e6, 1e200, math.inf):
        assert 4e11 < epsilon_from_mu(mu, delta=DELTA) < math.inf


def test_more_scores_of_a_perfect_attack_certify_more_under_a_gaussian() -> None:
    found = [
        gaussian_tradeoff(sides(members=[math.inf] * size, others=[-math.inf] * size), delta=DELTA, threshold=0.0)
        for size in (1, 10, 1000)
    ]
    assert found[0].epsilon == 0 < found[1].epsilon < found[2].epsilon < 60
    assert found[0].assumes == (GAUSSIAN_TRADEOFF,)


# Gaussian scores of a known standard deviation

NUMBERS = np.random.default_rng(0).normal(2.0, 3.0, 500)


def test_the_distance_of_means_is_in_units_of_the_noise() -> None:
    scores = sides(members=NUMBERS + 6, others=NUMBERS)
    small = sides(members=scores.members * 1e-6, others=scores.others * 1e-6)
    large, also = (mu_at_least(given, std=std, confidence=0.9) for given, std in ((scores, 3.0), (small, 3e-6)))
    assert large == pytest.approx(also, rel=1e-9)
    assert mu_at_least(sides(members=[3.0, 5.0], others=[1.0]), std=2.0, confidence=0.5) == pytest.approx(1.5)
    enormous = known_variance(sides(members=[1e300], others=[-1e300]), std=1e-5, delta=DELTA)
    assert 4e11 < enormous.epsilon < math.inf
    assert (enormous.assumes, enormous.by) == (KNOWN_VARIANCE, "known variance")


@pytest.mark.parametrize("per_side", [1, 30, 1000])
def test_null_scores_certify_something_just_as_often_as_stated(per_side: int) -> None:
    """The interval is exact: not only no more often, but no less either."""
    rng = np.random.default_rng(per_side)
    above = sum(
        mu_at_least(sides(members=one, others=other), std=1.0, confidence=CONFIDENCE) > 0
        for one, other in rng.normal(0, 1, (2000, 2, per_side))
    )
    assert stats.binom.ppf(0.001, 2000, 0.05) <= above <= most_exceptions()


def test_noise_that_was_halved_is_refuted() -> None:
    def moved_twice(scores: Scores) -> LowerBound:
        moved = sides(members=scores.members + mu_of(3.0), others=scores.others)
        return known_variance(moved, std=1.0, delta=DELTA)

    assert mean_certified(moved_twice, truth=3.0, per_side=1000, repetitions=10) > 6


def test_the_tests_accept_the_stated_law_and_reject_another() -> None:
    assert variance_p_value(NUMBERS, std=3.0) > 0.01
    assert max(variance_p_value(NUMBERS, std=std) for std in (2.0, 4.5)) < 1e-6
    assert mean_p_value(NUMBERS, mean=2.0, std=3.0) > 0.01
    assert max(mean_p_value(NUMBERS, mean=mean, std=3.0) for mean in (3.0, 1.0)) < 1e-6
    rows = np.random.default_rng(1).normal(1.0, 2.0, (1000, 20))
    assert stats.kstest([variance_p_value(row, std=2.0) for row in rows], "uniform").pvalue > 0.001
    assert stats.kstest([mean_p_value(row, mean=1.0, std=2.0) for row in rows], "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: known_variance(sides(members=[math.inf], others=[0.0]), std=1.0, delta=DELTA), "members"),
        (lambda: variance_p_value(np.ones(1), std=1.0), "values"),
        (lambda: variance_p_value(NUMBERS, std=0.0), "std"),
        (lambda: mean_p_value(np.array([math.nan]), mean=0.0, std=1.0), "values"),
        (lambda: mean_p_value(np.ones(3), mean=math.nan, std=1.0), "mean"),
        (lambda: mean_p_value(NUMBERS, mean=0.0, std=math.nan), "std"),
    ],
)
def test_values_that_cannot_be_tested_are_refused(call: Callable[[], object], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{name}"):
        call()


# One step of Poisson sampling and Gaussian noise

APART = sides(members=[2.0] * 400, others=[-2.0] * 400)


def sampled(scores: Scores = APART, **changed: Any) -> LowerBound:
    return sampled_gaussian(scores, **{"threshold": 0.0, "num_drawn": 400, "num_draws": 400, "delta": DELTA, **changed})


def one_step(rng: np.random.Generator, *, mu: float, drawn: int) -> Scores:
    members = rng.normal(mu, 1, drawn) if drawn else np.array([-np.inf])
    return Scores(members=members, others=rng.normal(0, 1, 300))


@pytest.mark.parametrize("probability, mu", [(1.0, 1.0), (0.1, 1.0), (0.01, 2.5)])
def test_epsilon_is_that_of_the_accountant_where_nothing_is_left_to_chance(probability: float, mu: float) -> None:
    expected = accounting.claim(PoissonSampled(probability, Gaussian(1 / mu)), delta=DELTA).epsilon
    assert epsilon_from_parts(probability, mu, delta=DELTA) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    "probability, mu, delta, root",  # to fifty digits, by bisection
    [
        (1.0, 0.5, 1e-05, 1.99309140441512),
        (1.0, 10.0, 1e-12, 119.5884087123134),
        (0.1, 0.5, 1e-05, 0.3690366902865915),
        (0.1, 3.0, 1e-12, 21.79145085591246),
        (0.1, 10.0, 0.0999, 15.6070779150197),
        (0.001, 2.0, 1e-06, 1.085235709057931),
    ],
)
def test_epsilon_is_never_above_the_root_and_close_to_it(
    probability: float, mu: float, delta: float, root: float
) -> None:
    # Where δ explains nearly all of it, a part in 10⁹ of δ is more of ε.
    assert root * (1 - 1e-6) <= epsilon_from_parts(probability, mu, delta=delta) <= root


def test_epsilon_grows_with_either_part() -> None:
    by_rate = [epsilon_from_parts(rate, 1.0, delta=DELTA) for rate in (0.01, 0.1, 0.5, 1.0)]
    by_distance = [epsilon_from_parts(0.1, mu, delta=DELTA) for mu in (0.5, 1.0, 2.0, 4.0)]
    assert by_rate[0] > 0
    assert by_rate == sorted(by_rate)
    assert by_distance == sorted(by_distance)


def test_scores_that_show_nothing_certify_nothing() -> None:
    found = sampled(num_drawn=40, confidence=0.9)
    assert found.epsilon > 0
    assert (found.by, found.assumes, found.confidence) == ("sampled Gaussian", SAMPLED_GAUSSIAN, 0.9)
    assert sampled(num_drawn=0).epsilon == 0
    assert sampled(Scores(members=np.array([-np.inf]), others=APART.others)).epsilon == 0
    assert sampled(Scores(members=APART.others, others=APART.members)).epsilon == 0
    # drawn so seldom that δ explains it
    assert epsilon_from_parts(0.1, 5.0, delta=0.1) == sampled(num_drawn=20, delta=0.1).epsilon == 0


@pytest.mark.parametrize("rate, mu", [(1.0, 0.0), (0.2, 1.0), (0.02, 2.5), (0.7, 0.5)])
def test_a_sampled_step_is_above_the_truth_no_more_often_than_stated(rate: float, mu: float) -> None:
    rng, truth = np.random.default_rng(6), epsilon_from_parts(rate, mu, delta=1e-4)
    numbers = {"threshold": mu / 2 or 0.5, "num_draws": 500, "delta": 1e-4, "confidence": 0.6}
    above = certified = 0
    for _ in range(400):
        drawn = int(rng.binomial(500, rate))
        found = sampled(one_step(rng, mu=mu, drawn=drawn), num_drawn=drawn, **numbers).epsilon
        above, certified = above + (found > truth), certified + (found > 0.3 * truth)
    assert above <= most_exceptions(400, confidence=0.6)
    assert certified > 100 or mu == 0  # and this is not for want of saying anything


def test_waiting_for_a_number_of_draws_does_no_harm() -> None:
    # The scores stay as they are: what is left to chance is how often the record was drawn.
    rng, far = np.random.default_rng(7), sides(members=[1.0] * 2000, others=[0.0] * 2000)
    at = partial(sampled, far, threshold=0.5, delta=1e-6, confidence=0.5)
    rate, first, until, last = 0.03, 50, 4, 400
    truth = at(num_drawn=int(rate * 10**9), num_draws=10**9).epsilon
    above = 0
    for _ in range(1000):
        heads = np.cumsum(rng.random(last) < rate)
        num_draws = min(last, max(first, int(np.searchsorted(heads, until)) + 1))
        above += at(num_drawn=int(heads[num_draws - 1]), num_draws=num_draws).epsilon > truth
    assert 100 < above <= most_exceptions(1000, confidence=0.75)  # half of the error probability is for the distance


@pytest.mark.parametrize(
    "name, bad",
    [
        ("delta", 0.0),
        ("delta", math.nan),
        ("confidence", 1.0),
        ("threshold", math.nan),
        ("num_drawn", -1),
        ("num_drawn", 401),
        ("num_draws", 0),
    ],
)
def test_numbers_of_a_sampled_step_are_checked_by_name(name: str, bad: float) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name}"):
        sampled(APART, **{name: bad})
