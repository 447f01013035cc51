"""The step sizes of AGD, and how the largest of them follows what was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lehr.acceptance.energy import PrivateChoice
from lehr.acceptance.noisy_max import NoisyMax
from lehr.errors import InvalidValue
from lehr.interfaces import SlotState
from tests.acceptance.proposed import NOTHING_RELEASED, Unasked

ENERGY = PrivateChoice(loss_clip=1.0, epsilon=0.1)


@dataclass(frozen=True)
class Choosing(Unasked):
    """Chooses a place, whatever the step sizes, and notes them."""

    place: int
    asked: list[list[float]] = field(default_factory=list)

    def best(self, step_scales: Sequence[float]) -> int:
        self.asked.append(list(step_scales))
        return self.place


def chosen(rule: NoisyMax, state: SlotState, place: int) -> tuple[float, dict[str, Any]]:
    decision = rule.decide(state, Choosing(place), NOTHING_RELEASED)
    return decision.step_scale, dict(decision.state)


def test_step_sizes_are_equal_parts_of_the_largest_and_standing_still_is_one() -> None:
    rule, proposal = NoisyMax(energy=ENERGY, step_sizes=4, largest=2.0), Choosing(3)
    assert rule.decide(rule.start(), proposal, NOTHING_RELEASED).step_scale == 1.5
    assert proposal.asked == [[0.0, 0.5, 1.0, 1.5, 2.0]]


def test_standing_still_is_a_rejection_and_is_not_counted() -> None:
    rule = NoisyMax(energy=ENERGY, step_sizes=4, adapted_every=1)
    decision = rule.decide(rule.start(), Choosing(0), NOTHING_RELEASED)
    assert not decision.is_accepted
    assert decision.state == rule.start()
    assert rule.most_rejections is None


def test_the_largest_becomes_a_little_more_than_the_largest_that_was_chosen() -> None:
    rule = NoisyMax(energy=ENERGY, step_sizes=4, largest=2.0, adapted_every=3, headroom=0.1)
    state: SlotState = rule.start()
    for place in (1, 0, 3, 0):
        _, state = chosen(rule, state, place)
    assert state == {"largest": 2.0, "largest_chosen": 1.5, "accepted": 2}
    _, state = chosen(rule, state, 2)
    assert state["largest"] == pytest.approx(1.65)
    assert (state["largest_chosen"], state["accepted"]) == (0.0, 3)
    assert chosen(rule, state, 4)[0] == pytest.approx(1.65)


@pytest.mark.parametrize(
    "wrong",
    [{"step_sizes": 0}, {"largest": 0.0}, {"largest": math.nan}, {"adapted_every": 0}, {"headroom": -0.1}],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        NoisyMax(energy=ENERGY, **wrong)
    assert [caught.value.name] == list(wrong)
