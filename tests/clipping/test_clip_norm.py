"""What can be a clip norm."""

from __future__ import annotations

import math

import pytest

from lehr.clipping.clip_norm import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM, a_clip_norm
from lehr.errors import InvalidValue


@pytest.mark.parametrize("value", [SMALLEST_CLIP_NORM, 0.1, 1, LARGEST_CLIP_NORM])
def test_a_number_within_the_range_is_returned_as_it_is(value: float) -> None:
    assert a_clip_norm(clip_norm=value) == value


@pytest.mark.parametrize("value", [0, -1, 1e-10, 1e10, math.inf, math.nan, True, "1", None])
def test_what_float32_cannot_divide_by_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidValue, match="bound must be"):
        a_clip_norm(bound=value)
