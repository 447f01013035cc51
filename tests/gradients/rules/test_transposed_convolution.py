from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.gradients.oracle import assert_agrees, batch

KINDS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@settings(max_examples=25)
@given(data=st.data(), dimensions=st.integers(1, 3), groups=st.sampled_from([1, 2]), views=st.sampled_from([1, 2]))
def test_any_shape_agrees_with_a_loop(data: Any, dimensions: int, groups: int, views: int) -> None:
    stride, dilation, padding = (data.draw(st.integers(1, 2)) for _ in range(3))
    layer = KINDS[dimensions](
        groups * data.draw(st.integers(1, 3)),
        groups * data.draw(st.integers(1, 2)),
        data.draw(st.integers(1, 3)),
        stride=stride,
        padding=padding,
        dilation=dilation,
        output_padding=data.draw(st.integers(0, max(stride, dilation) - 1)),
        groups=groups,
    )
    shape = (2, *((views,) if views > 1 else ()), layer.in_channels, *(5,) * dimensions)
    assert_agrees(layer.double(), *batch(*shape), views=views)


def test_the_size_of_the_output_may_be_given_with_the_call() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)

        def forward(self, inputs: Tensor) -> Tensor:
            outputs: Tensor = self.layer(inputs, output_size=(8, 7))
            return outputs

    assert_agrees(Sized().double(), *batch(2, 2, 4, 4))
