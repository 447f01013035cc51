"""Colours against formulas by hand and against the standard library's conversions."""

from __future__ import annotations

import colorsys
import math

import pytest
import torch
from torch import Tensor

from lehr.data.augmentation.colour import ColourJitter, Grayscale
from lehr.data.augmentation.drawing import uniforms
from lehr.errors import InvalidValue


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def images(channels: int = 3, count: int = 6) -> Tensor:
    return torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def jitter(**strengths: float) -> ColourJitter:
    return ColourJitter(
        **{"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0} | strengths, probability=1.0
    )


def draws(given: Tensor, **ranges: tuple[float, float]) -> dict[str, Tensor]:
    """What is drawn for an image, in the order in which it is."""
    generator = seeded()
    order = ("brightness", "contrast", "saturation", "hue")
    ends = {"brightness": (1.0, 1.0), "contrast": (1.0, 1.0), "saturation": (1.0, 1.0), "hue": (0.0, 0.0)} | ranges
    return {name: uniforms(*ends[name], like_M=given, generator=generator) for name in order}


def grey(given: Tensor) -> Tensor:
    return torch.tensor([0.299, 0.587, 0.114], dtype=given.dtype).view(1, 3, 1, 1).mul(given).sum(1, keepdim=True)


def test_brightness_multiplies() -> None:
    given = images()
    factor = draws(given, brightness=(0.2, 1.8))["brightness"]
    torch.testing.assert_close(jitter(brightness=0.8)(given, seeded()), (given * factor).clamp(0, 1))


def test_contrast_moves_away_from_the_mean_brightness() -> None:
    given = images()
    factor = draws(given, contrast=(0.5, 1.5))["contrast"]
    mean = grey(given).mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(jitter(contrast=0.5)(given, seeded()), (mean + factor * (given - mean)).clamp(0, 1))


def test_saturation_moves_away_from_grey() -> None:
    given = images()
    factor = draws(given, saturation=(0.2, 1.8))["saturation"]
    expected = (grey(given) + factor * (given - grey(given))).clamp(0, 1)
    torch.testing.assert_close(jitter(saturation=0.8)(given, seeded()), expected)


def test_hue_is_turned_as_the_standard_library_turns_it() -> None:
    given = images()
    found = jitter(hue=0.5)(given, seeded())
    turns = draws(given, hue=(-0.5, 0.5))["hue"].flatten().tolist()
    for view, turn in enumerate(turns):
        for row in range(4):
            for column in range(4):
                hue, saturation, value = colorsys.rgb_to_hsv(*given[view, :, row, column].tolist())
                expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
                assert found[view, :, row, column].tolist() == pytest.approx(expected, abs=1e-9)


def test_grey_has_no_hue_to_turn() -> None:
    given = images(channels=1).expand(-1, 3, -1, -1)
    torch.testing.assert_close(jitter(hue=0.5)(given, seeded()), given)


def test_without_strength_nothing_moves() -> None:
    torch.testing.assert_close(jitter()(images(), seeded()), images())


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_without_three_channels_there_is_no_colour_to_move(channels: int) -> None:
    given = images(channels)
    with_colour = ColourJitter(probability=1.0)(given, seeded())
    assert torch.equal(with_colour, ColourJitter(probability=1.0, saturation=0.0, hue=0.0)(given, seeded()))
    assert not torch.equal(with_colour, given)
    assert torch.equal(Grayscale(probability=1.0)(given, seeded()), given)


def test_grayscale_has_the_brightness_in_every_channel() -> None:
    given = images()
    torch.testing.assert_close(Grayscale(probability=1.0)(given, seeded()), grey(given).expand_as(given))


@pytest.mark.parametrize("operation, probability", [(ColourJitter(probability=0.3), 0.3), (Grayscale(), 0.2)])
def test_a_view_is_changed_as_often_as_asked_for_and_else_left_exactly(
    operation: ColourJitter | Grayscale, probability: float
) -> None:
    given = images(count=8000)
    is_changed = (operation(given, seeded()) != given).flatten(1).any(1)
    assert abs(is_changed.double().mean().item() - probability) < 5 * math.sqrt(0.25 / 8000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_stay_in_range_and_type(dtype: torch.dtype) -> None:
    found = ColourJitter(brightness=3.0, contrast=3.0, saturation=3.0, hue=0.5)(images(count=200).to(dtype), seeded())
    assert found.dtype == dtype
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.parametrize("wrong", [{"hue": 0.6}, {"brightness": -1.0}, {"contrast": math.nan}, {"probability": 2.0}])
def test_strengths_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        ColourJitter(**wrong)
