"""A clip norm under a public schedule: the sensitivity that is stated follows it at every step."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.clipping.automatic import AutomaticClip
from lehr.clipping.flat import FlatClip
from lehr.clipping.per_layer import PerLayerClip
from lehr.clipping.scheduled import ScheduledClip, with_schedule
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, Taken
from lehr.schedules import CONSTANT, Cosine, StepDecay
from tests.clipping.chosen import as_vector, gradients

HALVED = StepDecay(every=10, decay=0.5)
CLIPS = (
    FlatClip(0.8),
    AutomaticClip(0.8, stability=0.5),
    PerLayerClip(0.8, shares=(("first", 3.0), ("second", 4.0))),
)


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: type(clip).__name__)
def test_the_rule_of_a_step_is_the_same_rule_at_another_clip_norm(
    clip: FlatClip | AutomaticClip | PerLayerClip,
) -> None:
    scheduled, large = ScheduledClip(clip, HALVED), gradients(torch.full((1, 5), 1e4, dtype=torch.float64))
    for step, factor in ((0, 1.0), (9, 1.0), (10, 0.5), (25, 0.25)):
        rule = scheduled.rule({}, step)
        assert type(rule) is type(clip)
        assert rule.sensitivity == rule(large).sensitivity == 0.8 * factor
        torch.testing.assert_close(as_vector(rule(large).values), factor * as_vector(clip(large).values))


def test_what_is_released_changes_nothing() -> None:
    scheduled = ScheduledClip(FlatClip(1.0), HALVED)
    state = scheduled.start({})
    taken = Taken(released=ReleasedSum(values={"weight": torch.ones(3)}), divisor=2.0, is_accepted=False)
    assert scheduled.learn(state, taken) == state == {}


def test_a_constant_schedule_leaves_the_rule_alone() -> None:
    assert with_schedule(FlatClip(1.0), CONSTANT) == FlatClip(1.0)
    assert with_schedule(FlatClip(1.0), HALVED) == ScheduledClip(FlatClip(1.0), HALVED)


@pytest.mark.parametrize("step", [100, 1000])
def test_a_clip_norm_that_has_fallen_to_nothing_is_refused(step: int) -> None:
    with pytest.raises(InvalidValue, match="clip_norm"):
        ScheduledClip(FlatClip(1.0), Cosine(total_steps=100)).rule({}, step)


def test_a_schedule_that_is_no_number_is_refused() -> None:
    class Broken:
        def factor(self, step: int) -> float:
            return math.nan

    with pytest.raises(InvalidValue, match="clip_norm"):
        ScheduledClip(FlatClip(1.0), Broken()).rule({}, 0)
