"""Composition for runs that are chosen after seeing earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.accounting.accountant import bound
from lehr.accounting.closed_forms import gaussian_epsilon
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RenyiLimit,
    Repeated,
    SampledWithoutReplacement,
)
from lehr.accounting.filter import RenyiFilter, divergence_at, epsilon_at, is_within, limit_for
from lehr.accounting.rdp import RDP_BALLE20, RenyiAccountant, renyi_divergences
from lehr.errors import InvalidValue, UnsupportedEvent

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE
STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
FILTER = RenyiFilter.choose(epsilon=3.0, delta=1e-5)


def most(admits: Callable[[Event], bool], step: Event) -> int:
    """How often the step is admitted."""
    low, high = 0, 10**7
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if admits(Repeated(step, middle)) else (low, middle)
    return low


def test_a_filter_with_one_order_admits_what_the_renyi_accountant_allows_at_that_order() -> None:
    filter_ = RenyiFilter(epsilon=3.0, delta=1e-5, orders=(8.0,))
    accountant = RenyiAccountant("one order", (8.0,), RDP_BALLE20.convert, "the same rule")
    steps = most(filter_.admits, STEP)
    fits, one_more = (
        accountant.epsilon(Repeated(STEP, count), delta=1e-5, adjacency=ADD_OR_REMOVE) for count in (steps, steps + 1)
    )
    assert fits <= 3.0 < one_more


def test_several_orders_share_delta() -> None:
    one = RenyiFilter(epsilon=3.0, delta=1e-5, orders=(8.0,))
    twice = RenyiFilter(epsilon=3.0, delta=2e-5, orders=(8.0, 8.5))
    assert one.limits[0] == pytest.approx(twice.limits[0], rel=1e-12)


def test_adaptive_composition_admits_less_than_a_fixed_plan_and_more_of_an_expected_step() -> None:
    steps = most(FILTER.admits, STEP)
    assert 2.5 < RDP_BALLE20.epsilon(Repeated(STEP, steps), delta=1e-5, adjacency=ADD_OR_REMOVE) < 3.0
    expecting = RenyiFilter.choose(epsilon=3.0, delta=1e-5, expecting=STEP)
    assert len(expecting.orders) == 1
    tuned = most(expecting.admits, STEP)
    assert tuned > 1.05 * steps
    limit = limit_for(3.0, 1e-5, ADD_OR_REMOVE, expecting=STEP)
    assert abs(most(lambda event: is_within(event, limit, ADD_OR_REMOVE), STEP) - tuned) <= 1


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
def test_for_gaussian_noise_little_is_lost_against_the_exact_composition(epsilon: float) -> None:
    steps = most(RenyiFilter.choose(epsilon=epsilon, delta=1e-6).admits, Gaussian(200.0))
    assert 0.8 * epsilon < gaussian_epsilon(steps / 200.0**2, delta=1e-6) <= epsilon


@pytest.mark.parametrize("step", [Gaussian(50.0), PoissonSampled(0.001, Gaussian(0.6))])
def test_an_event_within_the_limit_of_one_order_is_admitted(step: Event) -> None:
    # heavy noise is best at the higher order, light noise at the lower one
    filter_ = RenyiFilter(epsilon=3.0, delta=1e-5, orders=(5.0, 9.0))
    steps = most(filter_.admits, step)
    alone = [RenyiFilter(epsilon=3.0, delta=5e-6, orders=(order,)) for order in filter_.orders]
    assert sorted(one.admits(Repeated(step, steps)) for one in alone) == [False, True]


def test_spent_epsilon_is_where_the_filter_would_just_admit_whatever_its_limit() -> None:
    event = Composed((Repeated(STEP, 1000), Gaussian(4.0)))
    spent = FILTER.epsilon_spent(event)
    assert RenyiFilter(epsilon=spent * (1 + 1e-9), delta=1e-5, orders=FILTER.orders).admits(event)
    assert not RenyiFilter(epsilon=spent * (1 - 1e-6), delta=1e-5, orders=FILTER.orders).admits(event)
    assert RenyiFilter(epsilon=1e17, delta=1e-5, orders=FILTER.orders).epsilon_spent(event) == pytest.approx(spent)


def test_nothing_spends_nothing_and_no_noise_spends_everything() -> None:
    assert FILTER.epsilon_spent(Composed(())) == 0
    assert FILTER.admits(Composed(()))
    assert FILTER.epsilon_spent(NonPrivate("raw")) == math.inf
    assert not FILTER.admits(NonPrivate("raw"))
    assert divergence_at(NonPrivate("raw"), 4.0, ADD_OR_REMOVE) == math.inf
    assert not is_within(NonPrivate("raw"), RenyiLimit(4.0, 1e300), ADD_OR_REMOVE)


def test_events_that_are_not_counted_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedEvent) as caught:
        FILTER.admits(SampledWithoutReplacement(100, 10, Gaussian(1.0)))
    assert caught.value.accountant == "filter"
    with pytest.raises(InvalidValue, match=r"^event"):
        FILTER.admits(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("orders", [(), (1.0,), (0.5, 3.0), (math.inf,), (math.nan,), (1e9,), (5.0,) * 21, ("a",)])
def test_bad_orders_are_refused_by_name(orders: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValue, match=r"^orders"):
        RenyiFilter(epsilon=1.0, delta=1e-5, orders=orders)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RenyiFilter.choose(epsilon=1e-17, delta=1e-5),
        lambda: RenyiFilter(epsilon=0.5, delta=1e-5, orders=(4.0,)),
        lambda: limit_for(1e-6, 1e-5, ADD_OR_REMOVE, expecting=STEP),
    ],
)
def test_an_epsilon_under_which_nothing_could_be_admitted_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue, match=r"^epsilon"):
        make()


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
    count = most(filter_.admits, PureDP(0.1))
    assert count == int(filter_.limits[0] / divergence)
    assert filter_.admits(Composed((Repeated(PureDP(0.1), count - 1), PureDP(0.01))))


# A limit at one order


@settings(max_examples=40)
@given(
    epsilon=st.floats(0.05, 200.0),
    delta=st.sampled_from([1e-9, 1e-5, 1e-2]),
    expecting=st.sampled_from([STEP, Gaussian(5.0), Composed((STEP, PureDP(0.1))), PureDP(0.01)]),
)
def test_the_way_to_a_limit_and_back_never_passes_epsilon(epsilon: float, delta: float, expecting: Event) -> None:
    found = bound(limit_for(epsilon, delta, ADD_OR_REMOVE, expecting=expecting), delta=delta).epsilon
    assert epsilon * (1 - 1e-7) <= found <= epsilon


def test_events_within_a_limit_are_within_its_epsilon() -> None:
    limit = limit_for(3.0, 1e-5, ADD_OR_REMOVE, expecting=STEP)
    admitted = Composed((Repeated(STEP, 3000), Gaussian(4.0)))
    assert is_within(admitted, limit, ADD_OR_REMOVE)
    at_order = epsilon_at(admitted, limit, delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert bound(admitted, delta=1e-5).epsilon <= at_order <= bound(limit, delta=1e-5).epsilon <= 3.0
    assert epsilon_at(Composed(()), limit, delta=1e-5, adjacency=ADD_OR_REMOVE) == 0


def test_a_limit_is_reached_exactly_and_not_passed() -> None:
    events = Composed((Repeated(Gaussian(2.0), 3), Gaussian(5.0)))
    exactly = divergence_at(events, 4.0, ADD_OR_REMOVE)
    assert exactly == pytest.approx(2 * (3 / 4 + 1 / 25), rel=1e-12)
    assert is_within(events, RenyiLimit(4.0, exactly), ADD_OR_REMOVE)
    assert not is_within(events, RenyiLimit(4.0, exactly * (1 - 1e-15)), ADD_OR_REMOVE)


def test_an_analyst_who_reacts_fills_a_limit_and_stays_within_its_divergence() -> None:
    """The moment E[(p/q)^α] under q of a transcript whose second query follows the first outcome, by integration.

    Where the first outcome looks as if the record were there the analyst spends all that is left, otherwise a tenth.
    """
    order, limit = 5.0, RenyiLimit(5.0, 1.0)
    first, rest, little = Gaussian(2.0), Gaussian(2.59), Gaussian(9.0)
    assert is_within(Composed((first, rest)), limit, ADD_OR_REMOVE)
    assert not is_within(Composed((first, Gaussian(2.58))), limit, ADD_OR_REMOVE)
    outcomes = np.linspace(-60.0, 60.0, 400_001)
    density = np.exp(-((outcomes / 2.0) ** 2) / 2) / (2.0 * math.sqrt(2 * math.pi))
    ratio = np.exp(order * (outcomes - 0.5) / 2.0**2)
    second = [math.exp((order - 1) * divergence_at(event, order, ADD_OR_REMOVE)) for event in (rest, little)]
    moment = float(np.sum(density * ratio * np.where(outcomes > 0.5, *second)) * (outcomes[1] - outcomes[0]))
    assert 0.95 * limit.divergence < math.log(moment) / (order - 1) <= limit.divergence


def test_where_the_series_of_an_order_has_no_end_the_next_whole_order_is_a_bound() -> None:
    step, fine = PoissonSampled(6 / 14, Gaussian(1.3)), PoissonSampled(6 / 14, Gaussian(0.65))
    assert renyi_divergences(step, (1.8,), ADD_OR_REMOVE, only_these=True).tolist() == [math.inf]
    assert divergence_at(step, 1.8, ADD_OR_REMOVE) == renyi_divergences(step, (2.0,), ADD_OR_REMOVE).item() < math.inf
    assert divergence_at(fine, 1.8, ADD_OR_REMOVE) < renyi_divergences(fine, (2.0,), ADD_OR_REMOVE).item()  # it has one
