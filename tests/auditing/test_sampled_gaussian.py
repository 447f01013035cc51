from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lehr import accounting
from lehr.auditing.sampled_gaussian import ASSUMES, epsilon_from_parts, lower_bound
from lehr.auditing.scores import Scores
from lehr.errors import InvalidValue
from lehr.events import Gaussian, PoissonSampled
from tests.auditing.simulated import DELTA, most_exceptions, sides

APART = sides(members=[2.0] * 400, others=[-2.0] * 400)


def played(rng: np.random.Generator, *, mu: float, drawn: int) -> Scores:
    members = rng.normal(mu, 1, drawn) if drawn else np.array([-np.inf])
    return Scores(members=members, others=rng.normal(0, 1, 300))


def test_it_says_what_it_is_and_what_it_rests_on() -> None:
    found = lower_bound(APART, threshold=0.0, num_drawn=40, num_draws=400, delta=DELTA, confidence=0.9)
    assert (found.by, found.assumes, found.delta, found.confidence) == ("sampled Gaussian", ASSUMES, DELTA, 0.9)


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
    assert lower_bound(APART, threshold=0.0, num_drawn=0, num_draws=400, delta=DELTA).epsilon == 0
    unseen = Scores(members=np.array([-np.inf]), others=APART.others)
    assert lower_bound(unseen, threshold=0.0, num_drawn=400, num_draws=400, delta=DELTA).epsilon == 0


def test_a_record_drawn_so_seldom_that_delta_explains_it_certifies_nothing() -> None:
    assert epsilon_from_parts(0.1, 5.0, delta=0.1) == 0
    assert lower_bound(APART, threshold=0.0, num_drawn=20, num_draws=400, delta=0.1).epsilon == 0


def test_scores_the_wrong_way_round_certify_nothing() -> None:
    wrong = Scores(members=APART.others, others=APART.members)
    assert lower_bound(wrong, threshold=0.0, num_drawn=400, num_draws=400, delta=DELTA).epsilon == 0


def test_null_scores_certify_nothing_at_the_stated_confidence() -> None:
    rng = np.random.default_rng(5)
    found = [
        lower_bound(
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
        found = lower_bound(
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
    truth = lower_bound(far, **at(int(rate * 10**9), 10**9)).epsilon
    above = 0
    for _ in range(1000):
        heads = np.cumsum(rng.random(last) < rate)
        num_draws = min(last, max(first, int(np.searchsorted(heads, until)) + 1))
        above += lower_bound(far, **at(int(heads[num_draws - 1]), num_draws)).epsilon > truth
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
        lower_bound(APART, **given)
