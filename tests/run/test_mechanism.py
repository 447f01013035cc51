"""Sampler, clip and noise are one object: what is charged is what is done."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lehr.accounting.events import (
    Adjacency,
    Event,
    Gaussian,
    PoissonSampled,
    RoundedGaussian,
    SampledWithoutReplacement,
)
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum
from lehr.optim.optimizers import sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip, Unclipped
from lehr.privacy.noise import IsotropicNoise, NoNoise, ProportionalNoise, isotropic_noise
from lehr.privacy.rng import RunKey
from lehr.run.mechanism import Mechanism, Method, sum_parts
from lehr.schedules import LinearDecay

METHOD = Method(name="dpsgd", clipping=FlatClip(0.5), noise=IsotropicNoise(), update=sgd(0.1))
PLAN = Plan(noise_multiplier=1.5, expected_batch_size=100, records=1000, steps=10, delta=1e-5)
REPLACE = replace(PLAN, adjacency=Adjacency.REPLACE_ONE)
DISCRETE = replace(REPLACE, noise="discrete")
KEY = RunKey(bytes(range(32)))


def a_sum(value: float = 0.0, size: int = 100_000) -> PrivateSum:
    return PrivateSum(values={"weight": torch.full((size,), value)}, sensitivity=0.5)


def method_of(plan: Plan) -> Method:
    return replace(METHOD, noise=isotropic_noise(plan.noise))


def step_of(plan: Plan) -> Event:
    mechanism = Mechanism.of(method_of(plan), plan)
    return mechanism.event(mechanism.noise_multiplier(0, 1.0))


def released(plan: Plan, private: PrivateSum, *, planned_step: int = 0) -> ReleasedSum:
    return Mechanism.of(method_of(plan), plan).release(private, {}, planned_step=planned_step, randomness=KEY.at(0, 0))


def test_event_of_a_step_is_the_plans() -> None:
    assert step_of(PLAN) == PoissonSampled(0.1, Gaussian(1.5)) == PLAN.step_event
    assert step_of(REPLACE) == SampledWithoutReplacement(1000, 100, Gaussian(1.5)) == REPLACE.step_event
    assert step_of(DISCRETE) == SampledWithoutReplacement(1000, 100, RoundedGaussian(1.5)) == DISCRETE.step_event


@pytest.mark.parametrize(
    "plan, sensitivity",
    [(PLAN, 0.5), (REPLACE, 1.0), (DISCRETE, 1.0)],
    ids=["add or remove", "replace", "replace, discrete"],
)
def test_noise_matches_the_event(plan: Plan, sensitivity: float) -> None:
    std = float(released(plan, a_sum()).values["weight"].std())
    assert std == pytest.approx(1.5 * sensitivity, rel=0.01)
    assert std != pytest.approx(1.5 * sensitivity * 1.1, rel=0.01)


def test_noise_is_added_once_per_draw() -> None:
    whole = released(PLAN, sum_parts([a_sum(3.0)])).values["weight"]
    parts = released(PLAN, sum_parts([a_sum(1.0)] * 3)).values["weight"]
    assert torch.equal(whole, parts)


def test_divisor_is_the_expected_batch_size() -> None:
    mechanism = Mechanism.of(METHOD, PLAN)
    before = mechanism.divisor
    sizes = {len(mechanism.draw(1000, KEY.at(step, 0))) for step in range(20)}
    assert len(sizes) > 1
    assert mechanism.divisor == before == 100


def test_sum_of_parts_keeps_the_sensitivity() -> None:
    assert sum_parts([a_sum(1.0), a_sum(2.0)]).sensitivity == 0.5
    assert float(sum_parts([a_sum(1.0), a_sum(2.0)]).values["weight"][0]) == 3.0


def sum_of(values: Tensor, *, size: int) -> float:
    """The sum of clipped gradients of one coordinate each, in physical batches."""
    parts = (PrivateSum(values={"weight": part.sum()}, sensitivity=1.0) for part in torch.split(values, size))
    return float(sum_parts(parts).values["weight"])


def test_sensitivity_of_a_sum_of_many_parts() -> None:
    """With one record less, each second physical batch of four is such that a running float32 sum is rounded up."""
    unit = 2.0**-9  # what sums of 2¹⁴ and more are rounded to in float32
    part = 1918 * unit + unit / 2 - 2**-21  # just below the middle
    period = torch.full((8,), part / 4)
    period[4] -= 2**-20  # together in one physical batch where the first record is there, and apart without it
    period[5] += 2**-20
    values = torch.cat([torch.ones(1), period.roll(-2).repeat(32768 // 8)])
    assert abs(sum_of(values, size=4) - sum_of(values[1:], size=4)) <= 1


def test_draw_is_in_random_order() -> None:
    mechanism = Mechanism.of(METHOD, replace(PLAN, expected_batch_size=1000))
    draws = [mechanism.draw(1000, KEY.at(step, 0)) for step in range(50)]
    assert all(draw.sort().values.equal(torch.arange(1000)) for draw in draws)
    together = sum(int((draw.argsort().div(10, rounding_mode="floor").diff() == 0).sum()) for draw in draws)
    # Of two neighbours the second is one of 9 of 999 in the physical batch of ten of the first.
    assert together == pytest.approx(50 * 999 * 9 / 999, rel=0.25)


def test_noise_with_another_event_than_the_plan() -> None:
    @dataclass(frozen=True)
    class Boastful(IsotropicNoise):
        def event(self, noise_multiplier: float) -> Gaussian:
            return Gaussian(2 * noise_multiplier)

    with pytest.raises(InvalidValue, match="plan"):
        Mechanism.of(replace(METHOD, noise=Boastful()), PLAN)


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda adjacency: adjacency.value)
@pytest.mark.parametrize("planned_step", [0, 4, 9])
def test_noise_under_a_schedule(adjacency: Adjacency, planned_step: int) -> None:
    plan = replace(PLAN, adjacency=adjacency, noise_schedule=LinearDecay(steps=9, first=2.0, last=1.0))
    charged = plan.gradient_event(planned_step)
    assert isinstance(charged, PoissonSampled | SampledWithoutReplacement)
    moved = 1.0 if adjacency is Adjacency.REPLACE_ONE else 0.5
    std = float(released(plan, a_sum(), planned_step=planned_step).values["weight"].std())
    assert std == pytest.approx(charged.event.noise_multiplier * moved, rel=0.01)
    assert charged.event.noise_multiplier == pytest.approx(1.5 * (2 - planned_step / 9))


def test_noise_by_coordinate_needs_bounds() -> None:
    with pytest.raises(InvalidValue, match="clipping must be one that bounds every coordinate"):
        replace(METHOD, noise=ProportionalNoise())


def test_is_private() -> None:
    assert METHOD.is_private
    assert not replace(METHOD, clipping=Unclipped(), noise=NoNoise()).is_private


def test_adaptive_noise_needs_a_limit() -> None:
    @dataclass(frozen=True)
    class Fading(IsotropicNoise):
        def factor(self, state: ComponentState) -> float:
            return 0.5

    mechanism = Mechanism.of(replace(METHOD, noise=Fading()), PLAN)
    with pytest.raises(InvalidValue, match="noise must be"):
        mechanism.release(a_sum(), {}, planned_step=0, randomness=KEY.at(0, 0))
