"""Rényi divergences and their two conversions."""

from __future__ import annotations

import logging
import math
from decimal import Decimal, localcontext
from itertools import pairwise

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import rdp

from lehr.accounting.closed_forms import gaussian_epsilon
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RenyiLimit,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)
from lehr.accounting.pld import PLD
from lehr.accounting.rdp import (
    FRACTIONAL_ORDERS,
    RDP_BALLE20,
    RDP_MIRONOV17,
    WHOLE_ORDERS,
    Floats,
    RenyiAccountant,
    balle20,
    renyi_divergences,
)
from lehr.errors import UnsupportedEvent
from tests.accounting.settings import DPSGD, TAN, Reference

ADD_OR_REMOVE, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
BALLE20_AT_WHOLE_ORDERS = RenyiAccountant("whole", WHOLE_ORDERS, balle20, "the same rule at fewer orders")
STEP = PoissonSampled(0.01, Gaussian(1.0))
ORDERS = np.array(FRACTIONAL_ORDERS)


def epsilon_of(event: Event, *, delta: float = 1e-5, adjacency: Adjacency = ADD_OR_REMOVE) -> float:
    return RDP_BALLE20.epsilon(event, delta=delta, adjacency=adjacency)


@pytest.mark.parametrize("reference", DPSGD)
def test_mironov17_gives_the_published_rule_of_sa_dpsgd(reference: Reference) -> None:
    epsilon, one_more = (
        RDP_MIRONOV17.epsilon(Repeated(reference.step, steps), delta=reference.delta, adjacency=ADD_OR_REMOVE)
        for steps in (reference.steps, reference.steps + 1)
    )
    assert epsilon == pytest.approx(reference.mironov17, abs=5e-5)
    assert epsilon <= 3 < one_more


@pytest.mark.parametrize(
    "accountant, reference",
    [*((BALLE20_AT_WHOLE_ORDERS, reference) for reference in DPSGD), *((RDP_BALLE20, reference) for reference in TAN)],
)
def test_balle20_gives_the_reference_values(accountant: RenyiAccountant, reference: Reference) -> None:
    epsilon = accountant.epsilon(reference.event, delta=reference.delta, adjacency=ADD_OR_REMOVE)
    assert epsilon == pytest.approx(reference.balle20, abs=reference.precision)


def test_sampling_without_replacement_agrees_with_dp_accounting() -> None:
    event = Repeated(SampledWithoutReplacement(60_000, 600, Gaussian(0.9)), 1800)
    orders = [order for order in FRACTIONAL_ORDERS if order <= 256]
    reference = rdp.RdpAccountant(orders, dp_accounting.NeighboringRelation.REPLACE_ONE)
    inner = dp_accounting.GaussianDpEvent(0.9)
    reference.compose(dp_accounting.SampledWithoutReplacementDpEvent(60_000, 600, inner), 1800)
    epsilon = epsilon_of(event, adjacency=REPLACE)
    assert epsilon == pytest.approx(reference.get_epsilon(1e-5), rel=1e-9)
    assert epsilon == pytest.approx(5.77, abs=5e-3)


@pytest.mark.parametrize(
    "event, adjacency",
    [
        (STEP, REPLACE),
        (SampledWithoutReplacement(100, 10, Gaussian(1.0)), ADD_OR_REMOVE),
        (RepeatAndSelect(Repeated(STEP, 5), mean=3.0), REPLACE),
        (RepeatAndSelect(RenyiLimit(6.0, 0.3), 10.0), ADD_OR_REMOVE),
    ],
)
def test_a_combination_that_no_theorem_covers_is_refused_by_name(event: Event, adjacency: Adjacency) -> None:
    with pytest.raises(UnsupportedEvent) as caught:
        epsilon_of(event, adjacency=adjacency)
    assert caught.value.accountant == "rdp-balle20"


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(0.0),
        Laplace(0.0),
        PoissonSampled(0.1, Gaussian(0.0)),
        NonPrivate("raw counts"),
        RepeatAndSelect(Composed((STEP, Gaussian(0.0))), mean=2.0),
        Composed((STEP, NonPrivate("raw counts"))),
    ],
)
def test_without_noise_epsilon_is_infinite(event: Event) -> None:
    assert epsilon_of(event) == math.inf


@pytest.mark.parametrize("delta", [0.1, 1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize("accountant", [RDP_BALLE20, RDP_MIRONOV17], ids=lambda each: each.name)
def test_with_ever_more_noise_epsilon_is_never_below_the_exact_one(accountant: RenyiAccountant, delta: float) -> None:
    found = {}
    for log_sigma in range(24):
        sigma = 2.0**log_sigma
        found[sigma] = accountant.epsilon(Gaussian(sigma), delta=delta, adjacency=ADD_OR_REMOVE)
        assert found[sigma] >= gaussian_epsilon(sigma**-2, delta=delta) * (1 - 2e-9) - 2e-12
    assert min(found.values()) == 0 or delta < 1e-5  # some are decided by a small total variation


def test_nothing_costs_nothing() -> None:
    assert epsilon_of(Composed(()), delta=1e-12) == 0


def test_laplace_noise_is_close_to_its_pure_epsilon() -> None:
    assert epsilon_of(Laplace(2.0)) == pytest.approx(0.5, rel=0.01)


def test_a_divergence_below_rounding_is_never_reported_as_zero() -> None:
    divergences = renyi_divergences(PoissonSampled(1e-7, Gaussian(1000.0)), FRACTIONAL_ORDERS, ADD_OR_REMOVE)
    smallest_possible = 1e-14 / 1000.0**2 / 2  # q²/2σ² times the order, at least
    assert np.all(divergences > smallest_possible)


def test_divergences_of_a_composition_are_the_sum_of_its_parts() -> None:
    whole = renyi_divergences(Composed((Repeated(STEP, 3), Gaussian(5.0))), (2.0, 7.5), ADD_OR_REMOVE)
    parts = 3 * renyi_divergences(STEP, (2.0, 7.5), ADD_OR_REMOVE)
    parts += renyi_divergences(Gaussian(5.0), (2.0, 7.5), ADD_OR_REMOVE)
    assert whole == pytest.approx(parts, rel=1e-12)


def test_an_order_asked_for_alone_is_as_among_others() -> None:
    for order in (1.7, 8.0, 64.0):
        alone = renyi_divergences(STEP, (order,), ADD_OR_REMOVE, only_these=True)
        assert alone[0] == renyi_divergences(STEP, FRACTIONAL_ORDERS, ADD_OR_REMOVE)[FRACTIONAL_ORDERS.index(order)]


def test_the_log_of_dp_accounting_stays_quiet_and_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    level = logging.getLogger("absl").level
    epsilon_of(PoissonSampled(0.51, Gaussian(0.31)))
    assert caplog.records == []
    assert logging.getLogger("absl").level == level


# Pure mechanisms


def response(epsilon: float) -> Floats:
    return renyi_divergences(PureDP(epsilon), FRACTIONAL_ORDERS, REPLACE)


@pytest.mark.parametrize("epsilon", [1e-120, 1e-9, 1e-3, 0.1, 1.0, 3.0, 40.0, 250.0])
def test_divergences_of_randomised_response_are_those_of_the_definition_and_never_below(epsilon: float) -> None:
    orders = (1.0001, 1.1, 2.0, 7.3, 64.0, 1024.0)
    for order, found in zip(orders, renyi_divergences(PureDP(epsilon), orders, REPLACE, only_these=True), strict=True):
        with localcontext() as context:
            context.prec = 400
            ratio, power = Decimal(epsilon).exp(), Decimal(order)
            true, false = ratio / (1 + ratio), 1 / (1 + ratio)
            total = true**power * false ** (1 - power) + false**power * true ** (1 - power)
            exact = float(total.ln() / (power - 1))
        assert exact * (1 - 1e-15) <= found <= exact * (1 + 1e-12)


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 2.0, 700.0, 1e100])
def test_divergences_of_randomised_response_rise_with_the_order_up_to_epsilon(epsilon: float) -> None:
    found = response(epsilon)
    assert (np.diff(found) >= 0).all()
    assert (found <= epsilon).all()
    assert (found <= ORDERS * epsilon**2 / 2 * (1 + 1e-13)).all()
    laplace = renyi_divergences(Laplace(1 / epsilon), FRACTIONAL_ORDERS, REPLACE)  # as private, and no worse
    assert (found >= laplace * (1 - 1e-9) - 1e-11).all() or epsilon > 100


def test_divergences_of_randomised_response_rise_with_epsilon() -> None:
    found = [response(epsilon) for epsilon in (0.0, *np.geomspace(1e-12, 1e3, 400).tolist(), 1.7e308)]
    assert all((later > earlier).all() for earlier, later in pairwise(found))
    assert (found[0] == 0).all()
    assert (found[-1] == math.inf).all()


@pytest.mark.parametrize("count", [1, 10, 100])
def test_renyi_never_lies_below_the_tight_count_of_pure_and_gaussian_steps(count: int) -> None:
    event = Repeated(Composed((PureDP(0.1), STEP, Gaussian(20.0))), count)
    tight = PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert tight < epsilon_of(event)
    assert PLD.epsilon(Composed((event, PureDP(0.2))), delta=1e-5, adjacency=ADD_OR_REMOVE) > tight


# Limits


def test_a_limit_holds_at_its_order_and_below_and_adds_up_with_other_events() -> None:
    limit = RenyiLimit(order=6.0, divergence=0.3)
    for adjacency in Adjacency:
        found = renyi_divergences(limit, (1.5, 6.0, 6.1, 64.0), adjacency)
        assert found.tolist() == [0.3, 0.3, math.inf, math.inf]
    event = Composed((limit, RenyiLimit(5.0, 0.2), Repeated(Gaussian(2.0), 2)))
    assert renyi_divergences(event, (4.0, 6.0), ADD_OR_REMOVE).tolist() == pytest.approx([0.5 + 2 * 4 / 8, math.inf])
    assert RDP_MIRONOV17.epsilon(RenyiLimit(1.5, 0.1), delta=1e-5, adjacency=ADD_OR_REMOVE) == math.inf


# Sampling without replacement


def _theorem_27(share: float, sigma: float, largest: int) -> list[mpmath.mpf]:
    """Divergences at the whole orders from 2 to ``largest`` by the alternating sums of the theorem, in many digits."""
    with mpmath.workdps(60 + largest + round(2 * largest * max(0.0, math.log10(sigma)))):
        moments = [mpmath.exp(mpmath.mpf(i * (i - 1)) / (2 * mpmath.mpf(sigma) ** 2)) for i in range(largest + 2)]
        sums = [
            mpmath.fsum((-1) ** (i + j) * mpmath.binomial(j, i) * moments[i] for i in range(j + 1))
            for j in range(largest + 2)
        ]
        terms = [
            mpmath.mpf(share) ** j * min(4 * mpmath.sqrt(sums[j - j % 2] * sums[j + j % 2]), 2 * moments[j])
            for j in range(2, largest + 1)
        ]
        return [
            mpmath.log1p(mpmath.fsum(mpmath.binomial(order, j) * terms[j - 2] for j in range(2, order + 1)))
            / (order - 1)
            for order in range(2, largest + 1)
        ]


@pytest.mark.parametrize("sigma", [0.3, 0.9, 3.0, 30.0, 1000.0, 1e5])
@pytest.mark.parametrize("share", [0.5, 0.01, 1e-5])
def test_without_replacement_no_divergence_is_below_the_theorem(sigma: float, share: float) -> None:
    event, largest = SampledWithoutReplacement(10**6, round(share * 10**6), Gaussian(sigma)), 64
    exact = _theorem_27(share, sigma, largest)
    found = renyi_divergences(event, tuple(float(order) for order in range(2, largest + 1)), REPLACE, only_these=True)
    for order, value, truth in zip(range(2, largest + 1), found.tolist(), exact, strict=True):
        assert truth <= value <= truth * (1 + 2e-9), (order, value)
    fractional = (1.5, 2.5, 33.3)
    for between, value in zip(fractional, renyi_divergences(event, fractional, REPLACE, only_these=True), strict=True):
        low, high = math.floor(between), math.ceil(between)
        weighted = [(w - 1) * exact[w - 2] if w > 1 else 0 for w in (low, high)]
        chord = ((high - between) * weighted[0] + (between - low) * weighted[1]) / (between - 1)
        assert value >= chord * (1 - 1e-15)
    assert renyi_divergences(event, (512.0,), REPLACE, only_these=True).tolist() == [math.inf]


# Selection


@pytest.mark.parametrize("shape", [0.0, 1.0, 2.0, None])
def test_selecting_the_best_of_several_costs_more_than_one_and_less_than_all(shape: float | None) -> None:
    run = Repeated(PoissonSampled(0.01, Gaussian(1.2)), 1000)
    best = epsilon_of(RepeatAndSelect(run, mean=50.0, shape=shape))
    assert epsilon_of(run) < best < epsilon_of(Repeated(run, 50))
    pure = epsilon_of(RepeatAndSelect(PureDP(0.1), mean=5.0, shape=shape), adjacency=REPLACE)
    assert epsilon_of(PureDP(0.1), adjacency=REPLACE) < pure < math.inf


def test_selection_uses_all_orders_even_when_few_are_asked_for() -> None:
    event = RepeatAndSelect(Repeated(STEP, 100), mean=5.0)
    few = renyi_divergences(event, (8.0,), ADD_OR_REMOVE)
    many = renyi_divergences(event, FRACTIONAL_ORDERS, ADD_OR_REMOVE)
    assert few[0] == pytest.approx(many[FRACTIONAL_ORDERS.index(8.0)], rel=1e-12)


@pytest.mark.parametrize("base", [PureDP(1e-9), Gaussian(1e9), PoissonSampled(1e-8, Gaussian(50.0)), PureDP(0.0)])
@pytest.mark.parametrize("mean", [1.0, 5.0, 1e6])
def test_poisson_selection_of_a_base_that_costs_almost_nothing_has_an_answer(base: Event, mean: float) -> None:
    assert 0 <= epsilon_of(RepeatAndSelect(base, mean=mean, shape=None)) < 1


@pytest.mark.parametrize("shape, mean", [(0.0, 30.0), (0.5, 7.0), (1.0, 30.0), (3.0, 4.0), (None, 30.0)])
def test_selection_agrees_with_dp_accounting(shape: float | None, mean: float) -> None:
    run = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.2)), 100
    )
    reference = rdp.RdpAccountant(list(FRACTIONAL_ORDERS))
    law = math.inf if shape is None else shape
    reference.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(run, mean, law))
    expected = np.minimum.accumulate(reference.rdp[::-1])[::-1]  # a divergence never falls with its order
    event = RepeatAndSelect(Repeated(PoissonSampled(0.01, Gaussian(1.2)), 100), mean, shape)
    assert renyi_divergences(event, FRACTIONAL_ORDERS, ADD_OR_REMOVE) == pytest.approx(expected, rel=1e-8)
