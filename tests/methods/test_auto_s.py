"""AUTO-S as a combination of components."""

from __future__ import annotations

import pytest

from lehr.acceptance.rules import Always
from lehr.errors import InvalidValue
from lehr.methods.auto_s import auto_s
from lehr.optim.optimizers import adam, sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import AutomaticClip
from lehr.run.mechanism import Mechanism

PLAN = Plan(noise_multiplier=1.5, expected_batch_size=8, records=40, steps=5, delta=1e-3)


def test_it_is_dpsgd_with_gradients_scaled_and_not_cut() -> None:
    method = auto_s(learning_rate=0.3, clip_norm=2.0, stability=0.05, momentum=0.0)
    assert method.clipping == AutomaticClip(2.0, stability=0.05)
    assert method.update == sgd(0.3, momentum=0.0)
    assert method.acceptance == Always()
    assert auto_s(update=adam(0.1)).update == adam(0.1)


def test_its_step_is_the_step_that_a_plan_counts() -> None:
    assert Mechanism.of(auto_s(), PLAN).event(1.5) == PLAN.step_event


@pytest.mark.parametrize("name", ["clip_norm", "stability"])
@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_a_setting_that_is_no_sound_number_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=name):
        auto_s(**{name: value})  # type: ignore[arg-type]
