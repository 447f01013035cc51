from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.gradients.oracle import assert_agrees, batch, ghost, loop


@settings(max_examples=15)
@given(groups=st.integers(1, 3), size=st.integers(1, 3), space=st.lists(st.integers(1, 3), max_size=3))
def test_any_shape_agrees_with_a_loop(groups: int, size: int, space: list[int]) -> None:
    if size * torch.Size(space).numel() > 1:  # torch refuses to normalise a single number
        assert_agrees(nn.GroupNorm(groups, groups * size).double(), *batch(2, groups * size, *space))


def test_without_gain_and_shift_it_passes_gradients_on() -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4, affine=False))
    assert_agrees(model.double(), *batch(3, 2, 5))


def test_a_layer_used_twice_counts_the_product_between_its_uses() -> None:
    layer = nn.GroupNorm(2, 4)
    assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(3, 4, 5))


@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_float32_stays_exact_far_from_zero(mean: float) -> None:
    inputs, targets_B = batch(3, 4, 6, 6)  # noqa: N806
    layer = nn.GroupNorm(2, 4)
    expected = loop(layer.double(), inputs + mean, targets_B)
    found = ghost(layer.float(), (inputs + mean).float(), targets_B.float())
    norms = torch.cat([grads.flatten(1) for grads in expected.values()], dim=1).norm(dim=1)
    torch.testing.assert_close(found.norms().double(), norms, rtol=1e-4, atol=0)
