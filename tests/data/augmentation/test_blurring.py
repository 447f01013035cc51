"""Blur against a loop over pixels."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.data.augmentation.blurring import GaussianBlur
from lehr.data.augmentation.drawing import uniforms
from lehr.errors import InvalidValue


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def mirrored(place: int, length: int) -> int:
    inside = abs(place)
    return inside if inside < length else 2 * (length - 1) - inside


def test_a_blurred_image_is_what_a_loop_over_pixels_finds() -> None:
    height, width, reach = 7, 5, 1
    given = torch.rand(3, 1, height, width, dtype=torch.float64, generator=seeded())
    found = GaussianBlur(probability=1.0)(given, seeded())
    spreads = uniforms(0.1, 2.0, like_M=given, generator=seeded()).flatten().tolist()
    taps = range(-reach, reach + 1)
    for view, spread in enumerate(spreads):
        weights = {(i, j): math.exp(-(i * i + j * j) / (2 * spread**2)) for i in taps for j in taps}
        for row in range(height):
            for column in range(width):
                seen = {
                    (i, j): given[view, 0, mirrored(row + i, height), mirrored(column + j, width)].item()
                    for i, j in weights
                }
                expected = sum(weights[at] * seen[at] for at in weights) / sum(weights.values())
                assert found[view, 0, row, column].item() == pytest.approx(expected, abs=1e-12)


def test_the_filter_is_about_a_tenth_of_the_side() -> None:
    given = torch.zeros(1, 1, 100, 100)
    given[0, 0, 50, 50] = 1.0
    found = GaussianBlur(widths=(50.0, 50.0), probability=1.0)(given, seeded())
    assert int((found > 0).sum()) == 11 * 11


def test_an_even_image_stays_even() -> None:
    given = torch.full((4, 3, 16, 16), 0.7)
    torch.testing.assert_close(GaussianBlur(probability=1.0)(given, seeded()), given)


def test_half_of_the_views_are_blurred() -> None:
    given = torch.rand(4000, 1, 4, 4, generator=seeded())
    found = GaussianBlur(widths=(1.0, 2.0))(given, seeded())
    share = (found != given).flatten(1).any(1).double().mean().item()
    assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(4000)


@pytest.mark.parametrize("wrong", [{"widths": (2.0, 1.0)}, {"widths": 1.0}, {"probability": 0.0}])
def test_blurs_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        GaussianBlur(**wrong)  # type: ignore[arg-type]
