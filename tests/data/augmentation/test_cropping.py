"""Crops against slow loops over images and pixels that use the same draws."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lehr.data.augmentation.cropping import PadAndCrop, RandomResizedCrop
from lehr.data.augmentation.drawing import places, uniforms
from lehr.errors import InvalidValue


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def images(count: int, *shape: int) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1))


def mirrored(place: int, length: int) -> int:
    """The pixel that a place outside of the image mirrors."""
    inside = abs(place)
    return inside if inside < length else 2 * (length - 1) - inside


def pixel(image_CHW: Tensor, row: int, column: int, mode: str) -> Tensor:  # noqa: N803
    _, height, width = image_CHW.shape
    if mode == "reflect":
        return image_CHW[:, mirrored(row, height), mirrored(column, width)]
    is_inside = 0 <= row < height and 0 <= column < width
    return image_CHW[:, row, column] if is_inside else torch.zeros(len(image_CHW))


@pytest.mark.parametrize("mode", ["reflect", "zero"])
def test_a_padded_crop_is_what_a_loop_over_pixels_finds(mode: str) -> None:
    given = images(12, 2, 8, 6)
    found = PadAndCrop(padding_fraction=0.3, mode=mode)(given, seeded())
    generator = seeded()
    tops = places(5, like_M=given, generator=generator).tolist()  # round(0.3 * 8) = 2 pixels
    lefts = places(5, like_M=given, generator=generator).tolist()
    for view, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        for row in range(8):
            for column in range(6):
                expected = pixel(given[view], row + top - 2, column + left - 2, mode)
                assert torch.equal(found[view, :, row, column], expected)


def test_every_shift_comes_equally_often() -> None:
    given = torch.zeros(25 * 400, 1, 8, 8)
    given[:, 0, 4, 4] = 1
    found = PadAndCrop(padding_fraction=0.25, mode="zero")(given, seeded())
    rows, columns = found[:, 0].nonzero()[:, 1] - 2, found[:, 0].nonzero()[:, 2] - 2
    counts = torch.bincount(rows * 5 + columns, minlength=25)
    assert len(counts) == 25
    assert ((counts - 400.0) ** 2 / 400).sum().item() < 51.2  # one in a thousand at 24 degrees of freedom


def test_without_a_border_the_image_stays() -> None:
    given = images(3, 3, 5, 5)
    assert torch.equal(PadAndCrop(padding_fraction=0.0)(given, seeded()), given)


@pytest.mark.parametrize("wrong", [{"padding_fraction": 0.6}, {"padding_fraction": math.nan}, {"mode": "wrap"}])
def test_borders_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        PadAndCrop(**wrong)  # type: ignore[arg-type]


def resampled(image_HW: Tensor, row: float, column: float) -> float:  # noqa: N803
    """The image between its pixels, whose centres are at whole numbers, by bilinear interpolation."""
    height, width = image_HW.shape
    row, column = min(max(row, 0.0), height - 1.0), min(max(column, 0.0), width - 1.0)
    top, left = int(row), int(column)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = (1 - (column - left)) * image_HW[top, left] + (column - left) * image_HW[top, right]
    lower = (1 - (column - left)) * image_HW[bottom, left] + (column - left) * image_HW[bottom, right]
    return float((1 - (row - top)) * upper + (row - top) * lower)


def test_a_resized_crop_is_what_a_loop_over_pixels_finds() -> None:
    height, width = 6, 9
    given = images(8, 1, height, width).double()
    found = RandomResizedCrop(area=(0.1, 0.8), aspect_ratio=(0.5, 2.0))(given, seeded())
    generator = seeded()
    areas, logarithms, rows, columns = (
        uniforms(low, high, like_M=given, generator=generator).flatten().tolist()
        for low, high in ((0.1, 0.8), (math.log(0.5), math.log(2.0)), (-1.0, 1.0), (-1.0, 1.0))
    )
    for view in range(8):
        ratio = math.exp(logarithms[view])
        tall = min(height, math.sqrt(areas[view] * height * width / ratio))
        wide = min(width, math.sqrt(areas[view] * height * width * ratio))
        top = (height - tall) * (rows[view] + 1) / 2
        left = (width - wide) * (columns[view] + 1) / 2
        for row in range(height):
            for column in range(width):
                at = top + (row + 0.5) * tall / height - 0.5, left + (column + 0.5) * wide / width - 0.5
                assert found[view, 0, row, column].item() == pytest.approx(resampled(given[view, 0], *at), abs=1e-9)


def test_the_whole_image_stays_as_it_is() -> None:
    given = images(4, 3, 8, 8)
    found = RandomResizedCrop(area=(1.0, 1.0), aspect_ratio=(1.0, 1.0))(given, seeded())
    torch.testing.assert_close(found, given, rtol=0, atol=1e-6)


def test_areas_and_ratios_are_drawn_from_their_ranges() -> None:
    # On a ramp, what a crop leaves of the slope is what it takes of the side.
    ramp = torch.linspace(0, 1, 33)
    given = torch.stack([ramp[:, None].expand(33, 33), ramp[None, :].expand(33, 33)])[None].expand(4000, -1, -1, -1)
    found = RandomResizedCrop(area=(0.1, 0.3), aspect_ratio=(0.5, 2.0))(given.double(), seeded())
    tall = (found[:, 0, 20, 16] - found[:, 0, 12, 16]) * 32 / 33 / (8 / 33)
    wide = (found[:, 1, 16, 20] - found[:, 1, 16, 12]) * 32 / 33 / (8 / 33)
    areas, ratios = tall * wide, (wide / tall).log2()
    assert areas.min() > 0.1 - 1e-6
    assert areas.max() < 0.3 + 1e-6
    assert areas.mean().item() == pytest.approx(0.2, abs=5 * 0.2 / math.sqrt(12 * 4000))
    assert ratios.abs().max() < 1 + 1e-6
    assert ratios.mean().item() == pytest.approx(0.0, abs=5 * 2 / math.sqrt(12 * 4000))


@pytest.mark.parametrize("wrong", [{"area": (0.5, 1.5)}, {"area": (0.5, 0.2)}, {"aspect_ratio": (0.0, 1.0)}])
def test_crops_that_make_no_sense_are_refused(wrong: dict[str, tuple[float, float]]) -> None:
    with pytest.raises(InvalidValue):
        RandomResizedCrop(**wrong)
