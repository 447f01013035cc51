"""DPSGD per layer as a combination of components."""

from __future__ import annotations

import pytest

from lehr.acceptance.rules import Always
from lehr.errors import InvalidValue
from lehr.methods.per_layer import dpsgd_per_layer
from lehr.optim.optimizers import adam, sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import PerLayerClip, ScheduledClip
from lehr.privacy.noise import IsotropicNoise
from lehr.run.mechanism import Mechanism
from lehr.schedules import StepDecay

PLAN = Plan(noise_multiplier=1.5, expected_batch_size=8, records=40, steps=5, delta=1e-3)


def test_layers_share_one_clip_norm_evenly_or_as_given() -> None:
    assert dpsgd_per_layer(clip_norm=2.0).clipping == PerLayerClip(2.0)
    given = dpsgd_per_layer(clip_norm=2.0, shares={"last": 1.0, "first": 3.0})
    assert given.clipping == PerLayerClip(2.0, shares=(("first", 3.0), ("last", 1.0)))


def test_the_other_slots_are_those_of_dpsgd() -> None:
    method = dpsgd_per_layer(learning_rate=0.3, momentum=0.8)
    assert (method.noise, method.acceptance) == (IsotropicNoise(), Always())
    assert method.update == sgd(0.3, momentum=0.8)
    assert dpsgd_per_layer(update=adam(0.1)).update == adam(0.1)


def test_its_step_is_the_step_that_a_plan_counts() -> None:
    assert Mechanism.of(dpsgd_per_layer(), PLAN).event(1.5) == PLAN.step_event


def test_the_bounds_may_follow_a_schedule() -> None:
    halved = StepDecay(every=2, decay=0.5)
    assert dpsgd_per_layer(clip_norm=2.0, clip_schedule=halved).clipping == ScheduledClip(PerLayerClip(2.0), halved)


@pytest.mark.parametrize("name", ["clip_norm", "learning_rate"])
@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_a_setting_that_is_no_sound_number_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=name):
        dpsgd_per_layer(**{name: value})  # type: ignore[arg-type]
