"""SA-DPSGD as a filling of the slots."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.energy import PublicEnergy
from lehr.clipping.flat import FlatClip
from lehr.errors import InvalidValue
from lehr.mechanism import Mechanism
from lehr.methods.dpsgd import dpsgd
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.planning.plan import Plan

PLAN = Plan(noise_multiplier=1.5, expected_batch_size=8, records=40, steps=5, delta=1e-3)


def test_it_is_dpsgd_whose_candidates_may_be_refused() -> None:
    method = sa_dpsgd(learning_rate=0.3, clip_norm=2.0, initial_inverse_temperature=5.0, rejection_threshold=3)
    assert method.clipping == FlatClip(2.0)
    assert method.update == dpsgd(learning_rate=0.3).update
    assert method.acceptance == Annealed(initial_inverse_temperature=5.0, rejection_threshold=3)
    assert method.acceptance.energy == PublicEnergy()


def test_a_candidate_costs_what_a_step_of_dpsgd_costs() -> None:
    assert Mechanism.of(sa_dpsgd(), PLAN).event(1.5) == Mechanism.of(dpsgd(), PLAN).event(1.5) == PLAN.step_event


@pytest.mark.parametrize(
    "said",
    [{"rejection_threshold": 0}, {"initial_inverse_temperature": float("nan")}, {"initial_inverse_temperature": 0.0}],
    ids=str,
)
def test_a_setting_that_is_no_sound_number_is_refused_by_name(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        sa_dpsgd(**said)
    assert [caught.value.name] == list(said)
