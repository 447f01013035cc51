"""Flips: exact, and for every second view."""

from __future__ import annotations

import torch

from lehr.data.augmentation.drawing import uniforms
from lehr.data.augmentation.flipping import HorizontalFlip


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_a_view_is_mirrored_or_left_exactly() -> None:
    given = torch.rand(20, 2, 3, 5, generator=seeded())
    found = HorizontalFlip()(given, seeded())
    drawn = uniforms(0.0, 1.0, like_M=given, generator=seeded()).flatten().tolist()
    for view, number in enumerate(drawn):
        expected = given[view][:, :, [4, 3, 2, 1, 0]] if number < 0.5 else given[view]
        assert torch.equal(found[view], expected)


def test_every_second_view_is_mirrored_and_neighbours_are_independent() -> None:
    given = torch.tensor([0.0, 1.0]).expand(40_000, 1, 1, 2)
    is_mirrored = HorizontalFlip()(given, seeded())[:, 0, 0, 0]
    assert abs(is_mirrored.mean().item() - 0.5) < 0.0125
    both = (is_mirrored[:-1] * is_mirrored[1:]).mean().item()
    assert abs(both - 0.25) < 0.0125
