"""The price of a search: the law of its number of trials, what it does to the records, the noise that pays for it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import dp_accounting
import pytest
from dp_accounting import dp_event, rdp
from scipy import optimize, stats

from lehr import accounting
from lehr.accounting.events import Gaussian, PoissonSampled, RenyiLimit, Repeated, together
from lehr.accounting.rdp import FRACTIONAL_ORDERS
from lehr.errors import InvalidValue
from lehr.planning.plan import Plan
from lehr.planning.search_cost import Composition, RepeatedSelection, SearchPrice, from_json, plan_for, to_json
from lehr.planning.simulation import simulate

PLAN = Plan(noise_multiplier=2.0, expected_batch_size=64, records=1438, steps=20, delta=1e-4)
WAYS: tuple[SearchPrice, ...] = (
    RepeatedSelection(mean=4),
    RepeatedSelection(mean=4, shape=0),
    RepeatedSelection(mean=4, shape=0.5),
    RepeatedSelection(mean=4, shape=None),
    Composition(4),
)
DRAWS = 10_000


def spread(price: RepeatedSelection) -> Counter[int]:
    """The numbers that evenly spread uniform numbers stand for: the law itself, up to one part in ``DRAWS``."""
    return Counter(price.trials((place + 0.5) / DRAWS) for place in range(DRAWS))


def law(shape: float | None, mean: float, number: int) -> float:
    """The same law from scipy's distributions."""
    if shape is None:
        return float(stats.poisson(mean).pmf(number))
    if shape == 0:
        gamma = optimize.brentq(lambda g: (1 / g - 1) / math.log(1 / g) - mean, 1e-6, 1 - 1e-9)
        return float(stats.logser(1 - gamma).pmf(number))
    gamma = optimize.brentq(lambda g: shape * (1 / g - 1) / (1 - g**shape) - mean, 1e-6, 1 - 1e-9)
    whole = stats.nbinom(shape, gamma)
    return float(whole.pmf(number) / (1 - whole.pmf(0))) if number else 0.0


@pytest.mark.parametrize("shape", [None, 0.0, 0.5, 1.0, 3.0])
def test_the_number_of_trials_follows_its_law(shape: float | None) -> None:
    found = spread(RepeatedSelection(mean=4, shape=shape))
    for number in range(12):
        assert found[number] / DRAWS == pytest.approx(law(shape, 4, number), abs=3e-4)


@pytest.mark.parametrize("mean, shape", [(4.2, 1.0), (4, 0.9), (4, 0.0), (4, None)])
def test_that_comparison_tells_another_law_from_it(mean: float, shape: float | None) -> None:
    found = spread(RepeatedSelection(mean=mean, shape=shape))
    assert any(abs(found[number] / DRAWS - law(1.0, 4, number)) > 2e-3 for number in range(12))


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("mean", [1, 1.001, 2, 50])
def test_the_mean_is_never_above_the_stated_one_and_the_law_adds_up_to_one(shape: float, mean: float) -> None:
    total = found = 0.0
    for number, probability in RepeatedSelection(mean=mean, shape=shape)._law():
        total, found = total + probability, found + number * probability
        if number > mean and probability < 1e-20:
            break
    assert total == pytest.approx(1, abs=1e-12)
    assert mean * (1 - 1e-9) <= found <= mean * (1 + 1e-14)


def test_only_the_poisson_law_may_draw_no_trial_and_every_draw_is_a_number() -> None:
    least, largest = 2.0**-53, 1 - 2.0**-53
    for shape in (0.0, 0.5, 1.0, None):
        assert RepeatedSelection(mean=2, shape=shape).trials(least) == (0 if shape is None else 1)
        assert 30 < RepeatedSelection(mean=10, shape=shape).trials(largest) < 10**5
    assert RepeatedSelection(mean=1).trials(largest) == 1


@pytest.mark.parametrize("shape", [1.0, 0.0, 0.5, None])
def test_epsilon_of_a_selection_is_that_of_dp_accounting(shape: float | None) -> None:
    found = accounting.bound(RepeatedSelection(mean=6, shape=shape).event(PLAN.event), delta=1e-4).epsilon
    reference = rdp.RdpAccountant(list(FRACTIONAL_ORDERS), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = dp_accounting.PoissonSampledDpEvent(64 / 1438, dp_accounting.GaussianDpEvent(2.0))
    trial = dp_accounting.SelfComposedDpEvent(step, 20)
    reference.compose(dp_event.RepeatAndSelectDpEvent(trial, 6, math.inf if shape is None else shape))
    assert found == pytest.approx(reference.get_epsilon(1e-4), rel=1e-6)


def test_a_composition_is_all_of_its_trials() -> None:
    step = PoissonSampled(64 / 1438, Gaussian(2.0))
    assert Composition(4).event(PLAN.event) == Repeated(step, 80)
    assert Composition(4).certified(PLAN.event) == (PLAN.event, Repeated(step, 60))


@pytest.mark.parametrize("price", WAYS, ids=str)
def test_a_search_costs_more_than_one_run_and_its_noise_keeps_it_within_epsilon(price: SearchPrice) -> None:
    larger = Composition(8) if isinstance(price, Composition) else replace(price, mean=8)
    events = (PLAN.event, price.event(PLAN.event), larger.event(PLAN.event))
    one, few, many = (accounting.bound(event, delta=1e-4).epsilon for event in events)
    assert one < few < many
    beside = Repeated(Gaussian(20.0), 3)
    plan = plan_for(price, PLAN, epsilon=3.0, beside=beside)
    whole = price.event(together(plan.event, beside))
    assert 0.999 * 3 <= accounting.bound(whole, delta=1e-4).epsilon <= 3
    assert replace(plan, noise_multiplier=2.0) == PLAN


@pytest.mark.parametrize(
    "plan",
    [
        simulate(PLAN, expected_batch_size=8),
        replace(PLAN, noise_multiplier=0.0),
        replace(PLAN, stops_at_accepted=3),
        replace(PLAN, limit=RenyiLimit(4.0, 0.5)),
    ],
    ids=["simulation", "no noise", "stops", "limit"],
)
def test_only_a_full_private_run_with_known_events_is_a_trial(plan: Plan) -> None:
    with pytest.raises(InvalidValue):
        plan_for(RepeatedSelection(mean=2), plan, epsilon=3.0)


@pytest.mark.parametrize("price", WAYS, ids=str)
def test_a_price_survives_its_json_form(price: SearchPrice) -> None:
    assert from_json(to_json(price)) == price


@pytest.mark.parametrize(
    "shape",
    [
        None,
        {},
        {"kind": "free"},
        {"kind": ["selection"]},
        {"kind": "selection", "mean": 3},
        {"kind": "composition", "trials": 3, "mean": 2},
        *({"kind": "selection", "mean": mean, "shape": 1.0} for mean in (0.5, math.nan, math.inf, 10_001, "3")),
    ],
)
def test_another_json_form_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        from_json(shape)
