from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lehr.interfaces import layer_rule
from tests.gradients.oracle import assert_agrees, batch


@settings(max_examples=15)
@given(
    before=st.lists(st.integers(1, 3), max_size=2),
    shape=st.lists(st.integers(2, 4), min_size=1, max_size=2),
    bias=st.booleans(),
)
def test_any_shape_agrees_with_a_loop(before: list[int], shape: list[int], bias: bool) -> None:
    assert_agrees(nn.LayerNorm(shape, bias=bias).double(), *batch(2, *before, *shape))


def test_without_gain_and_shift_it_passes_gradients_on() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5, elementwise_affine=False))
    assert_agrees(model.double(), *batch(3, 2, 4))


@pytest.mark.parametrize("views", [1, 2])
def test_channels_that_are_moved_last_agree_with_a_loop(views: int) -> None:
    class Moved(nn.LayerNorm):
        pass

    class Channels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = Moved(4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            outputs: torch.Tensor = self.norm(images.permute(0, 2, 3, 1))
            return outputs.permute(0, 3, 1, 2)

    shape = (3, *((views,) if views > 1 else ()), 4, 3, 2)
    assert_agrees(Channels().double(), *batch(*shape), views=views)


def test_an_input_in_another_order_gives_the_same_and_keeps_its_order() -> None:
    layer = nn.LayerNorm(4)
    torch.nn.init.normal_(layer.weight)
    rule = layer_rule(layer)
    assert rule is not None
    assert rule.forward is not None
    seen: list[torch.Tensor] = []

    def tap(site: str, inputs: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        seen.append(inputs)
        return output

    values = torch.randn(3, 5, 4)
    other = values.transpose(0, 1).contiguous().transpose(0, 1)
    found, moved = rule.forward(layer, tap, values), rule.forward(layer, tap, other)
    torch.testing.assert_close(moved, found)
    torch.testing.assert_close(*seen)
    assert moved.stride() == other.stride()
