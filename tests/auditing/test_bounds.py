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
SOUND: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "confidence": 0.95, "by": "a bound", "assumes": ("a thing",)}


def test_nothing_certified_at_no_delta_is_a_bound() -> None:
    assert LowerBound(epsilon=0.0, delta=0.0, confidence=0.5, by="a bound").assumes == ()


@pytest.mark.parametrize(
    "name, bad",
    [
        *(("epsilon", bad) for bad in (-0.1, math.inf, math.nan)),
        *(("delta", bad) for bad in (1.0, -1e-9, math.nan)),
        *(("confidence", bad) for bad in (0.0, 1.0, math.nan)),
        *(("by", " "), ("assumes", "one sentence"), ("assumes", ("",))),
    ],
)
def test_what_is_no_bound_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidValue, match=f"^{name} must be"):
        LowerBound(**{**SOUND, name: bad})


# What holds for every bound from the scores of an attack.


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
    "bound, per_side, repetitions, expected",
    [
        (partial(clopper_pearson, threshold=SPLIT), 10_000, 20, 1.05),
        (partial(clopper_pearson, threshold=Corrected(tried=10)), 10_000, 20, 1.3),
        (partial(gaussian_tradeoff, threshold=SPLIT), 1000, 100, 1.65),
        (partial(gaussian_tradeoff, threshold=Corrected(tried=10)), 1000, 100, 1.95),
        *(
            (partial(known_variance, std=1.0), *sizes)
            for sizes in ((50, 100, 1.35), (200, 100, 2.15), (1000, 100, 2.6))
        ),
    ],
)
def test_a_good_part_of_three_is_certified(bound: Bound, per_side: int, repetitions: int, expected: float) -> None:
    mean = mean_certified(partial(bound, delta=DELTA), truth=3.0, per_side=per_side, repetitions=repetitions)
    assert expected < mean < 3


@pytest.mark.parametrize(
    "bound, name, bad",
    [
        *((clopper_pearson, "delta", bad) for bad in (-0.1, 1.0, math.nan)),
        *((gaussian_tradeoff, "delta", bad) for bad in (0.0, 1.0, math.nan)),  # no ε of a Gaussian is finite at 0
        (partial(known_variance, std=1.0), "delta", 0.0),
        (clopper_pearson, "confidence", 1.0),
        (gaussian_tradeoff, "confidence", 0.0),
        (partial(known_variance, std=1.0), "confidence", 1.0),
        *((known_variance, "std", bad) for bad in (0.0, -1.0, math.nan, math.inf)),
    ],
)
def test_numbers_outside_their_range_are_refused(bound: Bound, name: str, bad: float) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name} must be"):
        bound(sides(members=[1.0], others=[0.0]), **{"delta": 0.1, name: bad})


# Clopper-Pearson.


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


# The trade-off of Gaussian noise.


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


def test_more_scores_of_a_perfect_attack_certify_more_under_a_gaussian() -> None:
    found = [
        gaussian_tradeoff(sides(members=[math.inf] * size, others=[-math.inf] * size), delta=DELTA, threshold=0.0)
        for size in (1, 10, 1000)
    ]
    assert found[0].epsilon == 0 < found[1].epsilon < found[2].epsilon < 60
    assert found[0].assumes == (GAUSSIAN_TRADEOFF,)


# Gaussian scores of a known standard deviation.

NUMBERS = np.random.default_rng(0).normal(2.0, 3.0, 500)


def test_the_scale_of_the_scores_does_not_matter() -> None:
    scores = sides(members=NUMBERS + 6, others=NUMBERS)
    small = sides(members=scores.members * 1e-6, others=scores.others * 1e-6)
    large, also = (mu_at_least(given, std=std, confidence=0.9) for given, std in ((scores, 3.0), (small, 3e-6)))
    assert large == pytest.approx(also, rel=1e-9)


def test_at_even_confidence_the_bound_is_the_estimate() -> None:
    assert mu_at_least(sides(members=[3.0, 5.0], others=[1.0]), std=2.0, confidence=0.5) == pytest.approx(1.5)


def test_means_beyond_all_measure_have_a_finite_epsilon() -> None:
    found = known_variance(sides(members=[1e300], others=[-1e300]), std=1e-5, delta=DELTA)
    assert 4e11 < found.epsilon < math.inf
    assert (found.assumes, found.by) == (KNOWN_VARIANCE, "known variance")


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


def test_an_infinite_score_is_refused_since_no_gaussian_has_one() -> None:
    with pytest.raises(InvalidValue, match=r"^members must be a row of finite numbers"):
        known_variance(sides(members=[math.inf], others=[0.0]), std=1.0, delta=DELTA)


def test_the_tests_accept_the_stated_law_and_reject_another() -> None:
    assert variance_p_value(NUMBERS, std=3.0) > 0.01
    assert variance_p_value(NUMBERS, std=2.0) < 1e-6
    assert variance_p_value(NUMBERS, std=4.5) < 1e-6
    assert mean_p_value(NUMBERS, mean=2.0, std=3.0) > 0.01
    assert mean_p_value(NUMBERS, mean=3.0, std=3.0) < 1e-6
    assert mean_p_value(NUMBERS, mean=1.0, std=3.0) < 1e-6


def test_the_p_values_are_uniform_under_the_stated_law() -> None:
    rows = np.random.default_rng(1).normal(1.0, 2.0, (1000, 20))
    assert stats.kstest([variance_p_value(row, std=2.0) for row in rows], "uniform").pvalue > 0.001
    assert stats.kstest([mean_p_value(row, mean=1.0, std=2.0) for row in rows], "uniform").pvalue > 0.001


@pytest.mark.parametrize(
    "p_value, words",
    [
        (lambda: variance_p_value(np.ones(1), std=1.0), "values must be two or more numbers"),
        (lambda: variance_p_value(NUMBERS, std=0.0), "std must be"),
        (lambda: mean_p_value(np.array([math.nan]), mean=0.0, std=1.0), "values must be a row of finite numbers"),
        (lambda: mean_p_value(np.ones(3), mean=math.nan, std=1.0), "mean must be"),
        (lambda: mean_p_value(NUMBERS, mean=0.0, std=math.nan), "std must be"),
    ],
)
def test_values_that_cannot_be_tested_are_refused(p_value: Callable[[], float], words: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{words}"):
        p_value()


# One step of Poisson sampling and Gaussian noise.

APART = sides(members=[2.0] * 400, others=[-2.0] * 400)


def played(rng: np.random.Generator, *, mu: float, drawn: int) -> Scores:
    members = rng.normal(mu, 1, drawn) if drawn else np.array([-np.inf])
    return Scores(members=members, others=rng.normal(0, 1, 300))


def test_it_says_what_it_is_and_what_it_rests_on() -> None:
    found = sampled_gaussian(APART, threshold=0.0, num_drawn=40, num_draws=400, delta=DELTA, confidence=0.9)
    expected = ("sampled Gaussian", SAMPLED_GAUSSIAN, DELTA, 0.9)
    assert (found.by, found.assumes, found.delta, found.confidence) == expected


@pytest.mark.parametrize("probability, mu", [(1.0, 1.0), (0.1, 1.0), (0.01, 2.5)])
def test_it_is_that_of_the_accountant_where_nothing_is_left_to_chance(probability: float, mu: float) -> None:
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
    found = epsilon_from_parts(probability, mu, delta=delta)
    assert found <= root
    # Where δ explains nearly all of it, a part in 10⁹ of δ is more of ε.
    assert found == pytest.approx(root, rel=1e-6)


def test_epsilon_grows_with_either_part() -> None:
    by_rate = [epsilon_from_parts(rate, 1.0, delta=DELTA) for rate in (0.01, 0.1, 0.5, 1.0)]
    by_distance = [epsilon_from_parts(0.1, mu, delta=DELTA) for mu in (0.5, 1.0, 2.0, 4.0)]
    assert by_rate == sorted(by_rate)
    assert by_distance == sorted(by_distance)
    assert min(*by_rate, *by_distance) > 0


def test_a_record_that_was_never_drawn_certifies_nothing() -> None:
    assert sampled_gaussian(APART, threshold=0.0, num_drawn=0, num_draws=400, delta=DELTA).epsilon == 0
    unseen = Scores(members=np.array([-np.inf]), others=APART.others)
    assert sampled_gaussian(unseen, threshold=0.0, num_drawn=400, num_draws=400, delta=DELTA).epsilon == 0


def test_a_record_drawn_so_seldom_that_delta_explains_it_certifies_nothing() -> None:
    assert epsilon_from_parts(0.1, 5.0, delta=0.1) == 0
    assert sampled_gaussian(APART, threshold=0.0, num_drawn=20, num_draws=400, delta=0.1).epsilon == 0


def test_scores_the_wrong_way_round_certify_nothing() -> None:
    wrong = Scores(members=APART.others, others=APART.members)
    assert sampled_gaussian(wrong, threshold=0.0, num_drawn=400, num_draws=400, delta=DELTA).epsilon == 0


def test_null_scores_certify_nothing_at_the_stated_confidence() -> None:
    rng = np.random.default_rng(5)
    found = [
        sampled_gaussian(
            played(rng, mu=0.0, drawn=200), threshold=0.5, num_drawn=200, num_draws=200, delta=1e-6, confidence=0.9
        )
        for _ in range(500)
    ]
    assert sum(bound.epsilon > 0 for bound in found) <= most_exceptions(500, confidence=0.9)


@pytest.mark.parametrize("rate, mu", [(0.2, 1.0), (0.02, 2.5), (0.7, 0.5)])
def test_it_is_above_the_truth_no_more_often_than_stated(rate: float, mu: float) -> None:
    rng, truth = np.random.default_rng(6), epsilon_from_parts(rate, mu, delta=1e-4)
    above = certified = 0
    for _ in range(400):
        drawn = int(rng.binomial(500, rate))
        found = sampled_gaussian(
            played(rng, mu=mu, drawn=drawn),
            threshold=mu / 2,
            num_drawn=drawn,
            num_draws=500,
            delta=1e-4,
            confidence=0.6,
        ).epsilon
        above, certified = above + (found > truth), certified + (found > 0.3 * truth)
    assert above <= most_exceptions(400, confidence=0.6)
    assert certified > 100  # and this is not for want of saying anything


def test_waiting_for_a_number_of_draws_does_no_harm() -> None:
    # The scores stay as they are: what is left to chance is how often the record was drawn.
    rng, far = np.random.default_rng(7), sides(members=[1.0] * 2000, others=[0.0] * 2000)
    rate, first, until, last = 0.03, 50, 4, 400
    truth = sampled_gaussian(far, **at(int(rate * 10**9), 10**9)).epsilon
    above = 0
    for _ in range(1000):
        heads = np.cumsum(rng.random(last) < rate)
        num_draws = min(last, max(first, int(np.searchsorted(heads, until)) + 1))
        above += sampled_gaussian(far, **at(int(heads[num_draws - 1]), num_draws)).epsilon > truth
    assert 100 < above <= most_exceptions(1000, confidence=0.75)  # half of the error probability is for the distance


def at(num_drawn: int, num_draws: int) -> dict[str, Any]:
    return {"threshold": 0.5, "num_drawn": num_drawn, "num_draws": num_draws, "delta": 1e-6, "confidence": 0.5}


@pytest.mark.parametrize(
    "changed",
    [
        {"delta": 0.0},
        {"delta": math.nan},
        {"confidence": 1.0},
        {"threshold": math.nan},
        {"num_drawn": -1},
        {"num_drawn": 401},
        {"num_draws": 0},
    ],
)
def test_what_makes_no_sense_is_refused_by_name(changed: dict[str, Any]) -> None:
    (name,) = changed
    given: dict[str, Any] = {"threshold": 0.0, "num_drawn": 40, "num_draws": 400, "delta": DELTA, **changed}
    with pytest.raises(InvalidValue, match=rf"^{name} must be"):
        sampled_gaussian(APART, **given)
