from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.gradients.oracle import assert_agrees, batch

KINDS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@settings(max_examples=25)
@given(data=st.data(), dimensions=st.integers(1, 3), groups=st.sampled_from([1, 2]), views=st.sampled_from([1, 2]))
def test_any_shape_agrees_with_a_loop(data: Any, dimensions: int, groups: int, views: int) -> None:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.tuples(*[st.integers(low, high)] * dimensions)))

    channels, outputs = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 8))
    layer = KINDS[dimensions](
        channels,
        outputs,
        each(1, 3),
        stride=each(1, 2),
        padding=each(0, 2),
        dilation=each(1, 2),
        groups=groups,
        bias=data.draw(st.booleans()),
    )
    records = data.draw(st.integers(1, 3))
    shape = (records, *((views,) if views > 1 else ()), channels, *each(5, 7 - dimensions + 1))
    assert_agrees(layer.double(), *batch(*shape), views=views)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", ["same", "valid", "each"])
def test_every_padding_agrees_with_a_loop(dimensions: int, mode: str, padding: str) -> None:
    amounts: Any = tuple(range(1, dimensions + 1)) if padding == "each" else padding
    kernel, dilation = (4, 3, 2)[:dimensions], (1, 2, 1)[:dimensions]
    layer = KINDS[dimensions](2, 3, kernel, padding=amounts, dilation=dilation, padding_mode=mode)
    assert_agrees(layer.double(), *batch(2, 2, *(7, 6, 5)[:dimensions]))


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_small_images_with_many_channels_agree_with_a_loop(mode: Any) -> None:
    """Here the products of places are cheaper than the gradient."""
    layer = nn.Conv2d(24, 40, 3, padding=1, padding_mode=mode)
    assert_agrees(layer.double(), *batch(2, 24, 3, 3))
    assert_agrees(layer.double(), *batch(2, 2, 24, 2, 2), views=2)


def test_one_layer_used_on_one_size_counts_the_product_between_its_uses() -> None:
    layer = nn.Conv2d(2, 2, 3, padding=1)
    assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(3, 2, 5, 5))
    assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(3, 2, 2, 5, 5), views=2)


def test_one_layer_used_on_two_sizes_counts_the_product_between_its_uses() -> None:
    layer = nn.Conv2d(2, 2, 3)
    assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(3, 2, 7, 6))


def test_one_weight_with_two_strides_counts_the_product_between_its_uses() -> None:
    one, other = nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 3, stride=2)
    other.weight = one.weight
    assert_agrees(nn.Sequential(one, nn.Tanh(), other).double(), *batch(3, 2, 7))


def test_frames_of_a_record_may_be_flattened_into_images() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(1, 2, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.layer(inputs.flatten(0, 1))
            return outputs.reshape(inputs.shape[0], -1)

    assert_agrees(Frames().double(), *batch(2, 3, 1, 4, 4))


def test_channels_last_agrees_with_a_loop() -> None:
    inputs, targets_B = batch(3, 4, 5, 6)  # noqa: N806
    layer = nn.Conv2d(4, 6, 3, padding=1).double().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert_agrees(layer, inputs.contiguous(memory_format=torch.channels_last), targets_B)
