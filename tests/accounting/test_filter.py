"""Composition for runs that are chosen after seeing earlier ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lehr.accounting.filter import RenyiFilter
from lehr.accounting.gaussian_mechanism import gaussian_epsilon
from lehr.accounting.rdp import RDP_BALLE20
from lehr.errors import InvalidValue, UnsupportedEvent
from lehr.events import (
    Adjacency,
    Composed,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    PureDP,
    Repeated,
    SampledWithoutReplacement,
)

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
FILTER = RenyiFilter.choose(epsilon=3.0, delta=1e-5)


def _most(filter_: RenyiFilter, step: PoissonSampled | Gaussian) -> int:
    low, high = 0, 10**7
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if filter_.admits(Repeated(step, middle)) else (low, middle)
    return low


def test_a_filter_with_one_order_admits_what_the_renyi_accountant_allows_at_that_order() -> None:
    filter_ = RenyiFilter(epsilon=3.0, delta=1e-5, orders=(8.0,))
    accountant = type(RDP_BALLE20)("one order", (8.0,), RDP_BALLE20.convert, "the same rule")
    most = _most(filter_, STEP)
    for steps, is_within in ((most, True), (most + 1, False)):
        epsilon = accountant.epsilon(Repeated(STEP, steps), delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
        assert (epsilon <= 3.0) == is_within


def test_several_orders_share_delta() -> None:
    one = RenyiFilter(epsilon=3.0, delta=1e-5, orders=(8.0,))
    twice = RenyiFilter(epsilon=3.0, delta=2e-5, orders=(8.0, 8.5))
    assert one.limits[0] == pytest.approx(twice.limits[0], rel=1e-12)


def test_adaptive_composition_admits_less_than_a_fixed_plan() -> None:
    most = _most(FILTER, STEP)
    fixed = RDP_BALLE20.epsilon(Repeated(STEP, most), delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    assert 2.5 < fixed < 3.0


def test_saying_what_to_expect_admits_more_of_it() -> None:
    expecting = RenyiFilter.choose(epsilon=3.0, delta=1e-5, expecting=STEP)
    assert len(expecting.orders) == 1
    assert _most(expecting, STEP) > 1.05 * _most(FILTER, STEP)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
def test_for_gaussian_noise_little_is_lost_against_the_exact_composition(epsilon: float) -> None:
    filter_ = RenyiFilter.choose(epsilon=epsilon, delta=1e-6)
    steps = _most(filter_, Gaussian(200.0))
    assert 0.8 * epsilon < gaussian_epsilon(steps / 200.0**2, delta=1e-6) <= epsilon


def test_what_is_admitted_at_one_order_only_is_admitted() -> None:
    # heavy noise is best at the higher order, light noise at the lower one
    filter_ = RenyiFilter(epsilon=3.0, delta=1e-5, orders=(5.0, 9.0))
    for step in (Gaussian(50.0), PoissonSampled(0.001, Gaussian(0.6))):
        most = _most(filter_, step)
        assert most > 0
        alone = [RenyiFilter(epsilon=3.0, delta=5e-6, orders=(order,)) for order in filter_.orders]
        assert sorted(one.admits(Repeated(step, most)) for one in alone) == [False, True]


def test_spent_epsilon_is_where_the_filter_would_just_admit() -> None:
    event = Composed((Repeated(STEP, 1000), Gaussian(4.0)))
    spent = FILTER.epsilon_spent(event)
    assert RenyiFilter(epsilon=spent * (1 + 1e-9), delta=1e-5, orders=FILTER.orders).admits(event)
    assert not RenyiFilter(epsilon=spent * (1 - 1e-6), delta=1e-5, orders=FILTER.orders).admits(event)


def test_spent_epsilon_does_not_depend_on_the_limit() -> None:
    event = Repeated(STEP, 4000)
    at = [RenyiFilter(epsilon=limit, delta=1e-5, orders=(5.0, 9.0)).epsilon_spent(event) for limit in (3.0, 8.0, 1e17)]
    assert at == pytest.approx([at[0]] * 3, rel=1e-12)


def test_nothing_spends_nothing_and_no_noise_spends_everything() -> None:
    assert FILTER.epsilon_spent(Composed(())) == 0
    assert FILTER.admits(Composed(()))
    assert FILTER.epsilon_spent(NonPrivate("raw")) == math.inf
    assert not FILTER.admits(NonPrivate("raw"))


def test_an_event_that_it_cannot_take_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match="'filter' cannot count SampledWithoutReplacement"):
        FILTER.admits(SampledWithoutReplacement(100, 10, Gaussian(1.0)))


def test_what_is_no_event_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match="event must be an event; given: 3"):
        FILTER.admits(3)  # type: ignore[arg-type]


def test_an_epsilon_that_no_order_reaches_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^epsilon must be large enough"):
        RenyiFilter.choose(epsilon=1e-17, delta=1e-5)


@pytest.mark.parametrize("orders", [(), (1.0,), (0.5, 3.0), (math.inf,), (math.nan,), (1e9,), (5.0,) * 21, ("a",)])
def test_bad_orders_are_refused_by_name(orders: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValue, match=r"^orders must be"):
        RenyiFilter(epsilon=1.0, delta=1e-5, orders=orders)


def test_orders_that_could_admit_nothing_are_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^epsilon must be large enough"):
        RenyiFilter(epsilon=0.5, delta=1e-5, orders=(4.0,))


def test_an_adaptive_analyst_with_gaussian_noise_cannot_pass_the_limit() -> None:
    """The exact privacy loss of an analyst who reacts to outcomes, at the filter's limit, by simulation.

    After a first query the analyst spends the rest in one query if the outcome looked like the neighbour that has the
    record, and stops otherwise. The loss of the transcript is the sum of the losses of the queries made.
    """
    delta, epsilon, draws = 1e-2, 1.0, 400_000
    filter_ = RenyiFilter.choose(epsilon=epsilon, delta=delta)
    first = Gaussian(4.0)
    rest = next(
        sigma for sigma in np.arange(1.0, 50.0, 0.05) if filter_.admits(Composed((first, Gaussian(float(sigma)))))
    )
    random = np.random.default_rng(8)
    outcome = random.normal(1.0, 4.0, draws)  # the record is there; its query answers 1, else 0
    loss = (outcome - 0.5) / 4.0**2
    second = random.normal(1.0, rest, draws)
    loss = loss + np.where(outcome > 0.5, (second - 0.5) / rest**2, 0.0)
    simulated = np.maximum(-np.expm1(epsilon - loss), 0)
    assert simulated.mean() + 4 * simulated.std() / math.sqrt(draws) <= delta
    overspent = np.maximum(-np.expm1(epsilon - 2.0 * loss), 0)  # the same analyst with half of the noise, for contrast
    assert overspent.mean() > delta


def test_a_filter_admits_pure_mechanisms_as_often_as_their_divergence_allows() -> None:
    filter_ = RenyiFilter(epsilon=1.0, delta=1e-5, orders=(16.0,))
    divergence = (math.log(math.cosh(15.5 * 0.1)) - math.log(math.cosh(0.05))) / 15
    most = int(filter_.limits[0] / divergence)
    assert filter_.admits(Repeated(PureDP(0.1), most))
    assert not filter_.admits(Repeated(PureDP(0.1), most + 1))
    assert filter_.admits(Composed((Repeated(PureDP(0.1), most - 1), PureDP(0.01))))
