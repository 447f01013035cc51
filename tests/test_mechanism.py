"""Sampler, clip and noise are one object: what is charged is what is done."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from lehr.clipping.flat import FlatClip
from lehr.errors import InvalidValue
from lehr.events import Adjacency, Gaussian, PoissonSampled, SampledWithoutReplacement
from lehr.interfaces import PrivateSum
from lehr.mechanism import Mechanism, Method, added
from lehr.noise.isotropic import IsotropicNoise
from lehr.planning.plan import Plan
from lehr.rng import RunKey
from lehr.update.torch_optim import sgd

METHOD = Method(name="dpsgd", clipping=FlatClip(0.5), noise=IsotropicNoise(), update=sgd(0.1))
PLAN = Plan(noise_multiplier=1.5, expected_batch_size=100, records=1000, steps=10, delta=1e-5)
REPLACE = replace(PLAN, adjacency=Adjacency.REPLACE_ONE)
KEY = RunKey(bytes(range(32)))


def a_sum(value: float = 0.0, size: int = 100_000) -> PrivateSum:
    return PrivateSum(values={"weight": torch.full((size,), value)}, sensitivity=0.5)


def test_a_step_is_charged_as_the_plan_has_it() -> None:
    assert Mechanism.of(METHOD, PLAN).event == PoissonSampled(0.1, Gaussian(1.5)) == PLAN.step_event
    assert Mechanism.of(METHOD, REPLACE).event == SampledWithoutReplacement(1000, 100, Gaussian(1.5))


@pytest.mark.parametrize("plan, sensitivity", [(PLAN, 0.5), (REPLACE, 1.0)], ids=["add or remove", "replace"])
def test_the_noise_is_the_events_multiplier_times_what_a_neighbour_can_move(plan: Plan, sensitivity: float) -> None:
    released = Mechanism.of(METHOD, plan).release([a_sum()], KEY.at(0, 0))
    std = float(released.values["weight"].std())
    assert std == pytest.approx(1.5 * sensitivity, rel=0.01)
    assert std != pytest.approx(1.5 * sensitivity * 1.1, rel=0.01)


def test_noise_is_added_once_however_many_parts_a_draw_has() -> None:
    mechanism = Mechanism.of(METHOD, PLAN)
    whole = mechanism.release([a_sum(3.0)], KEY.at(0, 0)).values["weight"]
    parts = mechanism.release([a_sum(1.0)] * 3, KEY.at(0, 0)).values["weight"]
    assert torch.equal(whole, parts)


def test_the_divisor_is_the_expected_batch_and_no_draw_changes_it() -> None:
    mechanism = Mechanism.of(METHOD, PLAN)
    before = mechanism.divisor
    sizes = {len(mechanism.draw(1000, KEY.at(step, 0))) for step in range(20)}
    assert len(sizes) > 1
    assert mechanism.divisor == before == 100


def test_adding_parts_keeps_the_sensitivity_of_one() -> None:
    assert added([a_sum(1.0), a_sum(2.0)]).sensitivity == 0.5
    assert float(added([a_sum(1.0), a_sum(2.0)]).values["weight"][0]) == 3.0


def test_noise_that_states_another_event_than_the_plan_is_refused() -> None:
    @dataclass(frozen=True)
    class Boastful(IsotropicNoise):
        def event(self, noise_multiplier: float) -> Gaussian:
            return Gaussian(2 * noise_multiplier)

    with pytest.raises(InvalidValue, match="plan"):
        Mechanism.of(replace(METHOD, noise=Boastful()), PLAN)
