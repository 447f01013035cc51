"""Flat clipping, on gradients that are chosen."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.clipping.flat import FlatClip
from lehr.errors import InvalidValue
from tests.clipping.chosen import as_vector, gradients

LONG = torch.tensor([[3.0, 0, 0, 0, 4]], dtype=torch.float64)


def test_a_long_gradient_is_scaled_to_the_clip_norm() -> None:
    clipped = as_vector(FlatClip(2.0)(gradients(LONG)).values)
    torch.testing.assert_close(clipped, LONG[0] * 2 / 5, rtol=1e-11, atol=0)


def test_a_short_gradient_is_left_exactly_as_it_is() -> None:
    clipped = as_vector(FlatClip(6.0)(gradients(LONG)).values)
    assert clipped.equal(LONG[0])


def test_the_margin_of_the_gradients_is_kept() -> None:
    narrow = gradients(LONG.float(), precision="bfloat16")
    assert narrow.margin > 0
    clipped = as_vector(FlatClip(1.0)(narrow).values).norm().item()
    assert clipped < 1
    assert clipped == pytest.approx(1 / (1 + narrow.margin), rel=2**-8)


def test_the_rule_states_its_sensitivity_and_can_be_compared() -> None:
    assert FlatClip(1).sensitivity == FlatClip(1)(gradients(LONG)).sensitivity == 1.0
    assert {FlatClip(1.0), FlatClip(1.0)} == {FlatClip(1.0)}


@pytest.mark.parametrize("clip_norm", [0, -1.0, math.nan, math.inf, "1"])
def test_what_cannot_be_a_clip_norm_is_refused(clip_norm: float) -> None:
    with pytest.raises(InvalidValue, match="clip_norm must be"):
        FlatClip(clip_norm)
