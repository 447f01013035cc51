"""DPSGD as a combination of components."""

from __future__ import annotations

import pytest

from lehr.acceptance.rules import Always
from lehr.errors import InvalidValue
from lehr.methods.dpsgd import dpsgd
from lehr.optim.optimizers import adam, sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import IsotropicNoise
from lehr.run.mechanism import Mechanism
from lehr.schedules import Cosine

PLAN = Plan(noise_multiplier=1.5, expected_batch_size=8, records=40, steps=5, delta=1e-3)


def test_every_slot_has_the_filling_of_the_paper() -> None:
    method = dpsgd(learning_rate=0.3, clip_norm=2.0, momentum=0.8)
    assert method.clipping == FlatClip(2.0)
    assert method.noise == IsotropicNoise()
    assert method.acceptance == Always()
    assert method.update == sgd(0.3, momentum=0.8)


def test_its_step_is_the_step_that_a_plan_counts() -> None:
    mechanism = Mechanism.of(dpsgd(clip_norm=3.0), PLAN)
    assert mechanism.event(mechanism.noise_multiplier(0, 1.0)) == PLAN.step_event
    assert mechanism.divisor == 8


def test_another_optimizer_takes_the_place_of_sgd() -> None:
    assert dpsgd(update=adam(0.01)).update == adam(0.01)


def test_a_schedule_reaches_the_optimizer() -> None:
    assert dpsgd(schedule=Cosine(total_steps=9)).update.schedule == Cosine(total_steps=9)


@pytest.mark.parametrize("name", ["learning_rate", "clip_norm", "momentum"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "fast"])
def test_a_setting_that_is_no_sound_number_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=name):
        dpsgd(**{name: value})  # type: ignore[arg-type]
