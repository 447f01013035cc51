"""DPOPT as a combination of components."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest

from lehr.errors import InvalidValue
from lehr.methods.dpopt import dpopt
from lehr.optim.optimizers import adam, sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import AdaptiveClip, ReleasedPrior
from lehr.privacy.noise import OptimisedNoise
from lehr.run.mechanism import Mechanism

PLAN = Plan(noise_multiplier=1.5, expected_batch_size=8, records=40, steps=5, delta=1e-3)


@pytest.mark.parametrize("found_by", ["closed-form", "projected-gradient"])
def test_noise_is_shaped_over_bounds_that_follow_released_sums(
    found_by: Literal["closed-form", "projected-gradient"],
) -> None:
    method = dpopt(clip_norm=2.0, memory=0.8, bound_scale=1.5, found_by=found_by, least_share=0.2)
    assert method.clipping == AdaptiveClip(clip_norm=2.0, prior=ReleasedPrior(memory=0.8), bound_scale=1.5)
    assert method.noise == OptimisedNoise(found_by=found_by, memory=0.8, least_share=0.2)
    assert method.clipping.unproven is None
    assert method.update == sgd(0.1, momentum=0.0)
    assert dpopt(update=adam(0.1)).update == adam(0.1)


def test_its_step_is_the_step_that_a_plan_counts() -> None:
    assert Mechanism.of(dpopt(), PLAN).event(1.5) == PLAN.step_event


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": 0.0}, {"learning_rate": math.nan}, {"found_by": "search"}, {"least_share": 2.0}], ids=str
)
def test_a_setting_that_is_not_sound_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        dpopt(**wrong)
    assert [caught.value.name] == list(wrong)
