"""Automatic clipping, on gradients that are chosen."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lehr.clipping.automatic import SMALLEST_NORM, AutomaticClip
from lehr.errors import InvalidValue
from tests.clipping.chosen import as_vector, gradients


def of_norm(norm: float) -> Tensor:
    return norm * torch.tensor([[0.6, 0, 0, 0, 0.8]], dtype=torch.float64)


@pytest.mark.parametrize("norm", [1e-3, 0.01, 1, 1e6])
def test_a_gradient_is_divided_by_its_norm_and_the_stability_constant(norm: float) -> None:
    clipped = as_vector(AutomaticClip(2.0, stability=0.01)(gradients(of_norm(norm))).values)
    torch.testing.assert_close(clipped, of_norm(norm)[0] * 2 / (norm + 0.01), rtol=1e-10, atol=0)


@pytest.mark.parametrize("norm", [1e-6, 1, 1e6])
def test_without_a_stability_constant_all_gradients_have_the_clip_norm(norm: float) -> None:
    clipped = as_vector(AutomaticClip(2.0, stability=0)(gradients(of_norm(norm))).values)
    torch.testing.assert_close(clipped.norm().item(), 2.0, rtol=1e-10, atol=0)


@pytest.mark.parametrize("norm", [0, 1e-30, SMALLEST_NORM / 2])
def test_without_a_stability_constant_the_smallest_gradients_stay_small_and_finite(norm: float) -> None:
    clipped = as_vector(AutomaticClip(2.0, stability=0)(gradients(of_norm(norm))).values)
    torch.testing.assert_close(clipped, of_norm(norm)[0] * 2 / SMALLEST_NORM)


@pytest.mark.parametrize("stability", [-0.01, math.nan, math.inf, 1e10])
def test_what_cannot_be_a_stability_constant_is_refused(stability: float) -> None:
    with pytest.raises(InvalidValue, match="stability must be"):
        AutomaticClip(1.0, stability=stability)


def test_what_cannot_be_a_clip_norm_is_refused() -> None:
    with pytest.raises(InvalidValue, match="clip_norm must be"):
        AutomaticClip(math.nan)
