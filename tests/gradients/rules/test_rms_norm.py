from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.gradients.oracle import assert_agrees, batch


@settings(max_examples=15)
@given(
    before=st.lists(st.integers(1, 3), max_size=2),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    eps=st.sampled_from([None, 1e-3]),
)
def test_any_shape_agrees_with_a_loop(before: list[int], shape: list[int], eps: float | None) -> None:
    assert_agrees(nn.RMSNorm(shape, eps=eps).double(), *batch(2, *before, *shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_eps_that_is_not_given_is_torchs(dtype: torch.dtype) -> None:
    """Inputs as small as the root of eps, so that it decides."""
    inputs, targets_B = batch(3, 4, dtype=dtype)  # noqa: N806
    small = inputs * torch.finfo(dtype).eps ** 0.5
    assert_agrees(nn.RMSNorm(4).to(dtype), small, targets_B, tolerance=1e-4 if dtype == torch.float32 else 1e-10)


def test_without_gain_it_passes_gradients_on() -> None:
    assert_agrees(nn.Sequential(nn.Linear(4, 5), nn.RMSNorm(5, elementwise_affine=False)).double(), *batch(3, 2, 4))
