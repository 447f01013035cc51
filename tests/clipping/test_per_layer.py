"""Per-layer clipping, on gradients that are chosen."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from lehr.clipping.per_layer import PerLayerClip
from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from tests.clipping.chosen import gradients, losses

RECORD = torch.tensor([[3.0, 0, 4, 0, 0.1]], dtype=torch.float64)


def test_every_layer_is_clipped_to_its_equal_part() -> None:
    clipped = PerLayerClip(1.0)(gradients(RECORD)).values
    torch.testing.assert_close(clipped["first.weight"].norm().item(), 1 / math.sqrt(2))
    assert clipped["second.weight"].equal(RECORD[:, 3:])


def test_bounds_that_are_given_hold_layer_by_layer() -> None:
    rule = PerLayerClip.with_norms({"first": 0.3, "second": 0.04})
    clipped = rule(gradients(RECORD))
    torch.testing.assert_close(clipped.values["first.weight"].norm().item(), 0.3)
    torch.testing.assert_close(clipped.values["second.weight"].norm().item(), 0.04)
    assert clipped.sensitivity == rule.sensitivity == math.hypot(0.3, 0.04)


def test_shares_are_proportions_of_one_clip_norm() -> None:
    assert PerLayerClip(2.0, shares=(("first", 3), ("second", 4))).sensitivity == 2.0
    one = PerLayerClip(2.0, shares=(("first", 3), ("second", 4)))(gradients(10 * RECORD)).values
    other = PerLayerClip(2.0, shares=(("first", 6), ("second", 8)))(gradients(10 * RECORD)).values
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one["first.weight"].norm().item(), 1.2)


def test_shares_in_lists_are_those_in_tuples() -> None:
    given = [["first", 3], ["second", 4]]
    rule = PerLayerClip(2.0, shares=given)  # type: ignore[arg-type]
    given[0][1] = 100
    expected = PerLayerClip(2.0, shares=(("first", 3), ("second", 4)))
    assert rule == expected
    assert hash(rule) == hash(expected)


@pytest.mark.parametrize("shares", [1.0, ["first"], {"first": 1.0}, [("first", 1.0, 2.0)]])
def test_shares_that_are_no_pairs_are_refused(shares: Any) -> None:
    with pytest.raises(InvalidValue, match="shares must be pairs of a layer and its share"):
        PerLayerClip(2.0, shares=shares)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def test_weight_and_bias_of_one_layer_share_its_bound_also_behind_a_parametrization() -> None:
    layer = nn.Linear(2, 1).double()
    parametrize.register_parametrization(layer, "weight", Doubled())
    engine = GhostEngine(nn.Sequential(layer), losses, compiled=False)
    clipped = PerLayerClip(1.0)(engine.gradients(torch.ones(1, 2, dtype=torch.float64), torch.zeros(1))).values
    assert len(clipped) == 2
    torch.testing.assert_close(torch.cat([part.flatten() for part in clipped.values()]).norm().item(), 1.0)


@pytest.mark.parametrize("layers", [("first",), ("first", "second", "third")])
def test_bounds_for_other_layers_than_the_model_has_are_refused(layers: tuple[str, ...]) -> None:
    rule = PerLayerClip.with_norms(dict.fromkeys(layers, 1.0))
    with pytest.raises(InvalidValue, match=r"one for each of the layers \['first', 'second'\]"):
        rule(gradients(RECORD))


@pytest.mark.parametrize(
    "clip_norm, shares, name",
    [
        (math.nan, (), "clip_norm"),
        (1.0, (("first", 0.0),), "shares"),
        (1.0, (("first", 1.0), ("first", 1.0)), "shares"),
        (1.0, (("first", 1e-9), ("second", 1e9)), "shares"),
    ],
)
def test_what_bounds_nothing_is_refused(clip_norm: float, shares: tuple[tuple[str, float], ...], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        PerLayerClip(clip_norm, shares)


def test_a_bound_that_is_no_clip_norm_is_refused() -> None:
    with pytest.raises(InvalidValue, match="clip_norms must be"):
        PerLayerClip.with_norms({"first": math.nan})


def test_a_clip_norm_that_leaves_a_layer_too_little_is_refused() -> None:
    with pytest.raises(InvalidValue, match="clip_norm must be at least 1e-09 for each of 2 layers"):
        PerLayerClip(1e-9)(gradients(RECORD))
