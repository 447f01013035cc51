from __future__ import annotations

import json
import math

import pytest
import torch

from lehr.data.preparation import Preparation
from lehr.errors import InvalidValue

COLOUR = Preparation(mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))


def test_bytes_become_numbers_from_zero_to_one_and_other_numbers_stay() -> None:
    stored = torch.tensor([0, 51, 255], dtype=torch.uint8)
    unit = COLOUR.unit(stored)
    assert unit.dtype == torch.float32
    assert unit.tolist() == pytest.approx([0.0, 0.2, 1.0])
    assert stored.tolist() == [0, 51, 255]
    for values in (torch.tensor([0.3, 7.0]), torch.tensor([3, 4])):
        assert COLOUR.unit(values) is values


@pytest.mark.parametrize("shape", [(3, 2, 2), (5, 3, 2, 2), (5, 4, 3, 2, 2)])
def test_each_channel_has_its_own_constants(shape: tuple[int, ...]) -> None:
    normalised = COLOUR.normalised(torch.full(shape, 0.4))
    assert normalised.shape == shape
    assert normalised[..., :, 0, 0].reshape(-1, 3)[0].tolist() == pytest.approx([0.6, 0.2, 0.05])


def test_one_constant_serves_every_channel_and_none_changes_nothing() -> None:
    images = torch.full((2, 4, 1, 1), 0.5)
    one = Preparation(mean=(0.25,), std=(0.125,))
    assert one.normalised(images).eq(2.0).all()
    assert Preparation().normalised(images) is images
    stored = torch.full((2, 4, 1, 1), 51, dtype=torch.uint8)
    torch.testing.assert_close(one.prepared(stored), one.normalised(one.unit(stored)))


@pytest.mark.parametrize("shape", [(5, 1, 2, 2), (5, 4)])
def test_images_of_another_number_of_channels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValue, match="images"):
        COLOUR.normalised(torch.zeros(shape))


@pytest.mark.parametrize("mean, std", [(0.1, None), (math.nan, 1.0), (0.1, 0.0), (0.1, math.nan), ("a", 1.0)])
def test_constants_that_cannot_normalise_are_refused(mean: float, std: float | None) -> None:
    with pytest.raises(InvalidValue):
        Preparation(mean=(mean,), std=() if std is None else (std,))


def test_the_json_form_reads_back_and_others_are_refused() -> None:
    assert Preparation.from_json(json.loads(json.dumps(COLOUR.to_json()))) == COLOUR
    wrong: list[object] = [[], {"mean": []}, {"mean": [], "std": [], "more": 1}, {"mean": 1, "std": 1}]
    for shape in wrong:
        with pytest.raises(InvalidValue):
            Preparation.from_json(shape)
