"""AGD as a filling of the slots: costs follow what was released, and stay within a limit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from lehr.acceptance.energy import PrivateChoice
from lehr.acceptance.noisy_max import NoisyMax
from lehr.acceptance.salvage import Salvage
from lehr.accounting.filter import is_within
from lehr.clipping.flat import FlatClip
from lehr.errors import InvalidValue
from lehr.events import PureDP, counted
from lehr.ledger import Ledger
from lehr.mechanism import Mechanism
from lehr.methods.agd import agd
from lehr.noise.budgeted import BudgetedNoise
from lehr.planning.plan import Plan
from tests.training.tiny import fit_tiny

PLAN = Plan(noise_multiplier=1.5, expected_batch_size=8, records=40, steps=5, delta=1e-3)
SMALL: dict[str, Any] = {"epsilon": 4.0, "noise_multiplier": None, "steps": 4, "settings_chosen_on": "fixed"}


def test_every_slot_has_the_filling_of_the_paper() -> None:
    method = agd(clip_norm=2.0, loss_clip=1.0, choice_epsilon=0.2, growth=0.3, step_sizes=5, largest_step=1.0)
    energy = PrivateChoice(loss_clip=1.0, epsilon=0.2)
    assert method.acceptance == Salvage(NoisyMax(energy=energy, step_sizes=5, largest=1.0))
    assert (method.clipping, method.noise) == (FlatClip(2.0), BudgetedNoise(growth=0.3))


def test_without_a_limit_it_is_refused_for_its_noise_follows_what_was_released() -> None:
    with pytest.raises(InvalidValue, match="plan must be one with a limit"):
        Mechanism.of(agd(), PLAN)


def test_gradients_and_choices_are_charged_and_stay_within_the_limit(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method=agd(step_sizes=3, choice_epsilon=0.3), **SMALL)
    assert run.plan.limit is not None
    assert run.proven.epsilon <= 4.0
    assert run.certificate is not None
    assert 0.97 * 4.0 < run.certificate.epsilon <= 4.0
    with Ledger.open(tmp_path / "run/ledger.db") as ledger:
        charged = ledger.charged()
        assert ledger.count("steps") == run.end.step > 0
        assert counted(charged)[PureDP(0.3)] == run.end.step
    assert is_within(charged, run.plan.limit, run.plan.adjacency)


@pytest.mark.parametrize(
    "wrong", [{"clip_norm": math.nan}, {"growth": 0.0}, {"step_sizes": 0}, {"loss_clip": -1.0}], ids=str
)
def test_a_setting_that_is_not_sound_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        agd(**wrong)
    assert [caught.value.name] == list(wrong)
