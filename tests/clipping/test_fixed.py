"""Rules that are the same at every step: whatever was released or seen, they stay what they are."""

from __future__ import annotations

import pytest
import torch

from lehr.clipping.automatic import AutomaticClip
from lehr.clipping.fixed import FixedRule
from lehr.clipping.flat import FlatClip
from lehr.clipping.per_coordinate import PerCoordinateClip
from lehr.clipping.per_layer import PerLayerClip
from lehr.interfaces import PrivateSum, ReleasedSum, Taken

VALUES = {"weight": torch.ones(3)}
TAKEN = Taken(released=ReleasedSum(values=VALUES), divisor=2.0, is_accepted=True)
RULES = (FlatClip(1.0), AutomaticClip(1.0), PerLayerClip(1.0), PerCoordinateClip(VALUES))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_fixed_rule_is_itself_at_every_step_and_learns_nothing(rule: FixedRule) -> None:
    state = rule.start(VALUES)
    assert state == {}
    assert rule.learn(state, TAKEN) == {}
    assert rule.peek(state, PrivateSum(values=VALUES, sensitivity=1.0), divisor=2.0) == {}
    assert rule.rule(state, 0) is rule.rule(state, 10**6) is rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_only_a_clip_of_coordinates_needs_gradients_in_full(rule: FixedRule) -> None:
    assert rule.unproven is None
    assert rule.needs_coordinates == isinstance(rule, PerCoordinateClip)
