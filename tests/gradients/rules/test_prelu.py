from __future__ import annotations

import pytest
from torch import nn

from tests.gradients.oracle import assert_agrees, batch


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 2, 2)])
@pytest.mark.parametrize("slopes", [1, 4])
def test_one_slope_or_one_per_channel_agrees_with_a_loop(shape: tuple[int, ...], slopes: int) -> None:
    assert_agrees(nn.PReLU(slopes).double(), *batch(*shape))


def test_one_slope_of_one_channel_agrees_with_a_loop() -> None:
    assert_agrees(nn.PReLU(1).double(), *batch(3, 1, 5))


def test_layers_that_share_a_slope_count_the_product_between_them() -> None:
    slope = nn.PReLU()
    assert_agrees(nn.Sequential(nn.Linear(4, 4), slope, nn.Linear(4, 4), slope).double(), *batch(3, 4))
