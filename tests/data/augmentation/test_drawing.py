"""Draws: in their range, one for each view, and the same whatever the images hold."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.data.augmentation.drawing import a_range, places, sometimes, uniforms
from lehr.errors import InvalidValue


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_uniforms_fill_their_range_and_can_be_multiplied_with_images() -> None:
    drawn = uniforms(2.0, 6.0, like_M=torch.zeros(10_000, 3, 2, 2), generator=seeded())
    assert drawn.shape == (10_000, 1, 1, 1)
    assert drawn.min() >= 2
    assert drawn.max() <= 6
    assert abs(drawn.mean().item() - 4) < 5 * (4 / math.sqrt(12 * 10_000))
    assert drawn.std().item() == pytest.approx(4 / math.sqrt(12), rel=0.03)


def test_every_place_comes_equally_often() -> None:
    counts = torch.bincount(places(9, like_M=torch.zeros(9_000, 1, 1, 1), generator=seeded()), minlength=9)
    assert len(counts) == 9
    chi_squared = ((counts - 1000.0) ** 2 / 1000).sum().item()
    assert chi_squared < 26.1  # one in a thousand at 8 degrees of freedom


def test_draws_do_not_depend_on_what_the_images_hold() -> None:
    dark, bright = torch.zeros(5, 1, 2, 2), torch.ones(5, 1, 2, 2)
    assert torch.equal(
        uniforms(0.0, 1.0, like_M=dark, generator=seeded()), uniforms(0.0, 1.0, like_M=bright, generator=seeded())
    )
    assert torch.equal(places(7, like_M=dark, generator=seeded()), places(7, like_M=bright, generator=seeded()))


def test_the_type_of_the_images_is_kept() -> None:
    like = torch.zeros(3, 1, 1, 1, dtype=torch.float64)
    assert uniforms(0.0, 1.0, like_M=like, generator=seeded()).dtype == torch.float64


@pytest.mark.parametrize("probability", [0.2, 1.0])
def test_views_are_changed_as_often_as_asked_for(probability: float) -> None:
    before, after = torch.zeros(10_000, 1, 1, 1), torch.ones(10_000, 1, 1, 1)
    share = sometimes(after, before, probability=probability, generator=seeded()).mean().item()
    assert abs(share - probability) < 5 * math.sqrt(probability * (1 - probability) / 10_000) + 1e-9


@pytest.mark.parametrize("value", [(0.0, 1.0), (2.0, 1.0), (1.0, math.nan), (1.0,), 3.0, "ab"])
def test_what_is_no_range_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidValue, match="area"):
        a_range(area=value)
