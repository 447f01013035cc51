"""What the network sees of a record."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lehr.data import Preparation
from lehr.data.augmentation import augmentation_by_name
from lehr.errors import InvalidValue
from lehr.training.input_pipeline import InputPipeline

BYTES = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)


def look(**changed: Any) -> InputPipeline:
    said: dict[str, Any] = {
        "preparation": Preparation(mean=(0.5,), std=(0.25,)),
        "augmentation": augmentation_by_name("none"),
        "views": 1,
        "device": torch.device("cpu"),
    }
    return InputPipeline(**{**said, **changed})


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def test_bytes_are_seen_as_normalised_numbers() -> None:
    expected = (BYTES.float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(tensor(look().seen(BYTES)), expected)


def test_without_augmentation_a_record_is_trained_on_as_it_is_scored() -> None:
    assert torch.equal(tensor(look().trained(BYTES, drawn())), tensor(look().seen(BYTES)))


def test_views_are_an_axis_of_their_own() -> None:
    views = tensor(look(views=3).trained(BYTES, drawn()))
    assert views.shape == (2, 3, 1, 4, 4)
    assert torch.equal(views[:, 0], views[:, 2])
    assert torch.equal(views[:, 0], tensor(look().seen(BYTES)))


def test_one_augmented_view_has_no_axis_of_views() -> None:
    seen = tensor(look(augmentation=augmentation_by_name("flip_crop")).trained(BYTES.repeat(8, 1, 1, 1), drawn()))
    assert seen.shape == (16, 1, 4, 4)
    assert not torch.equal(seen, tensor(look().seen(BYTES.repeat(8, 1, 1, 1))))


def test_images_are_augmented_within_the_unit_range_and_normalised_afterwards() -> None:
    seen = tensor(look(augmentation=augmentation_by_name("flip_crop"), views=8).trained(BYTES, drawn()))
    black = (0 - 0.5) / 0.25
    assert float(seen.min()) == pytest.approx(black)  # what comes in from the side is black, and not grey


def test_scores_are_taken_without_augmentation() -> None:
    assert torch.equal(
        tensor(look(augmentation=augmentation_by_name("simclr"), views=4).seen(BYTES)), tensor(look().seen(BYTES))
    )


def test_records_of_several_parts_cannot_be_augmented() -> None:
    parts = {"one": torch.rand(2, 3), "two": torch.rand(2, 3)}
    seen = look(preparation=Preparation()).trained(parts, drawn())
    assert isinstance(seen, dict)
    assert torch.equal(seen["two"], parts["two"])
    with pytest.raises(InvalidValue, match="augmentation must be none where a record is not one image"):
        look(augmentation=augmentation_by_name("flip_crop")).trained(parts, drawn())
