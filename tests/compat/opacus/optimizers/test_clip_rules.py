from __future__ import annotations

import math
from typing import Any

import pytest
from torch import nn

from lehr.clipping import AutomaticClip, FlatClip, PerLayerClip
from lehr.clipping.clip_norm import LARGEST_CLIP_NORM
from lehr.compat.opacus.optimizers.clip_rules import checked_clipping, clip_rule
from lehr.errors import InvalidValue
from tests.compat.opacus.loops import private, take_steps

MODEL = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def rule(clipping: str, max_grad_norm: Any) -> Any:
    return clip_rule(clipping, max_grad_norm, model=MODEL, noise_multiplier=1.0, quantile=None)


def test_words_pick_rules() -> None:
    assert rule("flat", 0.5) == FlatClip(0.5)
    assert rule("automatic", 0.5) == AutomaticClip(0.5)
    assert rule("per_layer", 0.5) == PerLayerClip(0.5)


def test_a_norm_for_each_parameter_becomes_one_for_each_layer_with_the_same_sensitivity() -> None:
    found = rule("per_layer", [3.0, 4.0, 5.0, 12.0])
    assert dict(found.shares) == {"0": 5.0, "1": 13.0}
    assert found.sensitivity == pytest.approx(math.sqrt(9 + 16 + 25 + 144))


@pytest.mark.parametrize("clipping, norms", [("flat", [1.0, 1.0]), ("per_layer", [1.0]), ("per_layer", [1.0] * 5)])
def test_the_wrong_number_of_norms_is_refused(clipping: str, norms: list[float]) -> None:
    with pytest.raises(InvalidValue, match="max_grad_norm"):
        rule(clipping, norms)


def test_adaptive_clipping_needs_its_settings_and_others_have_none() -> None:
    with pytest.raises(InvalidValue, match="unclipped_num_std"):
        checked_clipping("adaptive", None)
    with pytest.raises(InvalidValue, match="clipping must be one of"):
        checked_clipping("quantile", None)
    with pytest.raises(InvalidValue, match="adaptive clipping"):
        private(clipping="adaptive", min_clipbound=1.0)


@pytest.mark.parametrize("clipping, norms", [("per_layer", [0.5] * 4), ("per_layer", 1.0), ("automatic", 1.0)])
def test_loops_are_clipped_and_charged_the_same_way(clipping: str, norms: Any) -> None:
    loop = private(clipping=clipping, max_grad_norm=norms)
    take_steps(loop, 2)
    assert loop.engine.accountant.history == [(1.0, 0.2, 2)]


def test_a_norm_that_means_no_clipping_is_the_largest_that_arithmetic_allows() -> None:
    for clipping, norm in (("flat", 1e20), ("automatic", float("inf")), ("per_layer", 1e20)):
        rule = clip_rule(clipping, norm, model=MODEL, noise_multiplier=1.0, quantile=None)
        assert rule.sensitivity == LARGEST_CLIP_NORM
