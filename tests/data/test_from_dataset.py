from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from lehr.data.from_dataset import FromDataset, in_memory
from lehr.errors import BadRecord, InvalidValue


class Items(Dataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        if isinstance(self.items[place], Exception):
            raise self.items[place]
        return self.items[place]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2), 0)])


def test_records_come_by_their_places() -> None:
    records = FromDataset(Items((torch.zeros(2), 5), (torch.ones(2), 6), (torch.ones(2) * 2, 7)))
    inputs, targets = records.batch(torch.tensor([2, 0]))
    assert inputs.tolist() == [[2.0, 2.0], [0.0, 0.0]]
    assert targets.tolist() == [7, 5]


def test_an_empty_batch_has_the_shapes_of_the_records() -> None:
    inputs, targets = FromDataset(Items(({"a": torch.zeros(2)}, 5))).batch(torch.tensor([], dtype=torch.int64))
    assert inputs["a"].shape == (0, 2)
    assert targets.shape == (0,)


def test_inputs_of_several_parts_stay_apart() -> None:
    records = FromDataset(Items(({"a": 1.0, "b": (2, 3)}, 0), ({"a": 4.0, "b": (5, 6)}, 1)))
    inputs, _ = records.batch(torch.tensor([0, 1]))
    assert inputs["a"].tolist() == [1.0, 4.0]
    assert [part.tolist() for part in inputs["b"]] == [[2, 5], [3, 6]]


@pytest.mark.parametrize("mode, channels", [("L", 1), ("RGB", 3)])
def test_images_and_arrays_become_tensors(mode: str, channels: int) -> None:
    image = Image.new(mode, (4, 2))
    records = in_memory(Items((image, np.int64(1)), (image, np.int64(0))))
    assert records.inputs.shape == (2, channels, 2, 4)
    assert records.inputs.dtype == torch.uint8
    assert records.targets.tolist() == [1, 0]


def test_all_records_are_read_once_in_order() -> None:
    records = in_memory(Items(*((torch.tensor([float(place)]), place) for place in range(2500))))
    assert records.inputs.flatten().tolist() == [float(place) for place in range(2500)]
    assert records.targets.tolist() == list(range(2500))


def test_tensors_are_taken_as_they_are() -> None:
    inputs, targets = torch.zeros(3, 2), torch.arange(3)
    assert in_memory(TensorDataset(inputs, targets)).inputs is inputs


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(OSError("the disk is gone"), id="cannot be read"),
        pytest.param((torch.zeros(3), 0), id="another shape"),
        pytest.param((torch.zeros(2),), id="no target"),
        pytest.param(5, id="no pair"),
        pytest.param(("text", 0), id="a text"),
        pytest.param((np.array(["text", "more"]), 0), id="an array of texts"),
        pytest.param(({"a": 1}, 0), id="other parts"),
    ],
)
def test_a_bad_record_is_named(bad: Any) -> None:
    records = Items((torch.zeros(2), 0), (torch.zeros(2), 1), bad)
    with pytest.raises(BadRecord, match="record 2 "):
        in_memory(records)


def test_a_bad_record_is_named_across_the_pieces_that_are_read_at_once() -> None:
    records = Items(*[(torch.zeros(1), 0)] * 1024, *[(torch.zeros(2), 0)] * 3)
    with pytest.raises(BadRecord, match="record 1024 "):
        in_memory(records)


def test_a_missing_part_is_named() -> None:
    with pytest.raises(BadRecord, match=r"record 1 .* no part 'b'"):
        in_memory(Items(({"a": 1, "b": 2}, 0), ({"a": 1}, 0)))


def test_what_cannot_be_fetched_by_place_or_held_as_two_tensors_is_refused() -> None:
    with pytest.raises(InvalidValue, match="map-style"):
        FromDataset(Stream())
    with pytest.raises(InvalidValue, match="one tensor for the input"):
        in_memory(Items(((torch.zeros(2), torch.zeros(2)), 0)))
    with pytest.raises(BadRecord, match="no records"):
        in_memory(Items())
