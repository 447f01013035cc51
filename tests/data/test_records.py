from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from lehr.data import image_folder
from lehr.data.records import (
    InMemory,
    RecordSet,
    check_count,
    check_trainable,
    input_bytes,
    overlap,
    read_dataset,
    sketch,
)
from lehr.errors import BadRecord, InvalidValue
from tests.data.picture_folders import write

COUNT = 12


def in_memory(folder: Path) -> RecordSet:
    return image_folder.read_image_folder(folder, channels=1).records


def streamed(folder: Path) -> RecordSet:
    return image_folder.stream_image_folder(folder, image_side=8, channels=1, workers=0)


@pytest.fixture(params=[in_memory, streamed])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> RecordSet:
    make: Callable[[Path], RecordSet] = request.param
    return make(write(tmp_path, COUNT, seed=1))


def test_records_are_fetched_by_index(records: RecordSet) -> None:
    indices = torch.tensor([7, 2, 9, 2])
    some = records.at(indices)
    assert (len(some), some.kind) == (4, records.kind)
    for one, other in zip(some.batch(torch.arange(4)), records.batch(indices), strict=True):
        assert torch.equal(one, other)
    assert list(some.contents()) == [list(records.contents())[index] for index in indices]


def test_an_empty_batch_has_the_shapes_and_types_of_the_records(records: RecordSet) -> None:
    for none, one in zip(records.batch(torch.tensor([]).long()), records.batch(torch.tensor([3])), strict=True):
        assert (len(none), none.shape[1:], none.dtype) == (0, one.shape[1:], one.dtype)


def test_targets_alone_go_to_a_device(records: RecordSet) -> None:
    inputs, targets = records.to("meta", targets_only=True).batch(torch.tensor([0]))
    assert isinstance(inputs, Tensor)
    assert (inputs.device.type, targets.device.type) == ("cpu", "meta")


def test_the_identity_has_the_role_and_the_records(records: RecordSet) -> None:
    def whole(some: RecordSet, role: str) -> bytes:
        return b"|".join(bytes(part) for part in some.identity(role))

    assert whole(records, "test") == whole(records, "test")
    others = [whole(records, "public"), whole(records.at(torch.arange(COUNT - 1)), "test")]
    assert len({whole(records, "test"), *others}) == 3


def test_the_printed_form_shows_neither_values_nor_their_number() -> None:
    small = InMemory(torch.arange(12.0).view(4, 3), torch.tensor([5, 6, 7, 8]))
    assert repr(small) == repr(small.at(torch.tensor([1]))) == "InMemory(inputs torch.float32 (3,), on cpu)"


def test_inputs_and_targets_begin_with_the_same_record_axis() -> None:
    for inputs, targets in ((3, 2), (2, 3)):
        with pytest.raises(BadRecord, match="record 2 "):
            InMemory(torch.zeros(inputs), torch.zeros(targets))
    with pytest.raises(InvalidValue, match="inputs"):
        InMemory(torch.tensor(1.0), torch.zeros(1))
    with pytest.raises(InvalidValue, match="targets"):
        InMemory(torch.zeros(1), [1])  # type: ignore[arg-type]


def contents(inputs: Tensor) -> list[bytes]:
    return [bytes(content) for content in input_bytes(inputs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_equal_records_have_equal_bytes_in_every_type_and_memory_order(dtype: torch.dtype) -> None:
    inputs = torch.tensor([[[0, 1], [1, 0]], [[1, 1], [0, 0]], [[0, 1], [1, 0]]], dtype=dtype)
    first, second, third = contents(inputs)
    assert first == third != second
    assert contents(inputs.transpose(1, 2).contiguous().transpose(1, 2)) == [first, second, third]


def test_bytes_of_zeros_of_no_records_and_of_many_records() -> None:
    assert contents(torch.tensor([[-0.0]])) == contents(torch.tensor([[0.0]]))
    assert contents(torch.zeros(0, 3)) == []
    assert contents(torch.zeros(2, 0)) == [b"", b""]
    numbers = torch.arange(10_000, dtype=torch.int64)
    assert contents(numbers) == [number.to_bytes(8, sys.byteorder) for number in range(10_000)]


NUM = 10_000


def sample(dtype: torch.dtype = torch.float32, labels: torch.dtype = torch.int64) -> InMemory:
    return InMemory(torch.ones(NUM, 2, dtype=dtype), (torch.arange(NUM) % 7).to(labels))


def refused(bad: InMemory, num_classes: int | None = 7) -> object:
    with pytest.raises(BadRecord) as error:
        check_trainable(bad, num_classes=num_classes)
    return error.value.record


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.int64])
def test_good_records_pass(dtype: torch.dtype) -> None:
    check_trainable(sample(dtype), num_classes=7)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 4095, 4096, NUM - 1])
def test_an_input_that_is_not_finite_names_its_record(index: int, value: float) -> None:
    bad = sample()
    bad.inputs[index, 1] = value
    assert refused(bad) == index


@pytest.mark.parametrize("label", [-1, 7, 2**40, 0.5, math.nan])
def test_a_label_out_of_range_names_its_record(label: float) -> None:
    bad = sample(labels=torch.int64 if isinstance(label, int) else torch.float64)
    bad.targets[5000] = label
    assert refused(bad) == 5000


def test_targets_that_are_not_classes_need_only_be_finite() -> None:
    bad = InMemory(sample().inputs, torch.full((NUM,), -2.5))
    check_trainable(bad, num_classes=None)
    bad.targets[8] = math.nan
    assert refused(bad, num_classes=None) == 8
    assert refused(bad.at(torch.tensor([]).long())) == 0


@pytest.mark.parametrize("stated, fits", [(100, True), (34, True), (300, True), (33, False), (301, False)])
def test_a_stated_number_of_records_may_be_off_by_a_factor_of_three(stated: int, fits: bool) -> None:
    if fits:
        check_count(stated=stated, held=100)
        return
    with pytest.raises(InvalidValue, match="records"):
        check_count(stated=stated, held=100)


def numbers(*values: float) -> InMemory:
    return InMemory(torch.tensor(values, dtype=torch.float32).view(-1, 1), torch.arange(len(values)))


def test_overlap_returns_indices_in_the_second_set() -> None:
    assert overlap(numbers(1, 2, 3), numbers(4, 3, 5, 1)) == (1, 3)
    assert overlap(numbers(1, 2), numbers(3)) == overlap(numbers(), numbers(3)) == overlap(numbers(1), numbers()) == ()
    with pytest.raises(InvalidValue):  # instead of calling them disjoint
        overlap(numbers(1), InMemory(torch.tensor([[1]], dtype=torch.uint8), torch.zeros(1)))


def test_sketches_share_about_as_much_as_their_sets() -> None:
    whole, half, others = numbers(*range(4000)), numbers(*range(2000)), numbers(*range(4000, 8000))
    assert sketch(whole) == sketch(numbers(*range(3999, -1, -1)))
    assert 0.3 < len(sketch(whole) & sketch(half)) / len(sketch(half)) < 0.7
    assert not sketch(whole) & sketch(others)


class Items(Dataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if isinstance(self.items[index], Exception):
            raise self.items[index]
        return self.items[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(2), 0)])


@pytest.mark.parametrize("mode, channels", [("L", 1), ("RGB", 3)])
def test_images_and_arrays_become_tensors(mode: str, channels: int) -> None:
    image = Image.new(mode, (4, 2))
    records = read_dataset(Items((image, np.int64(1)), (image, np.int64(0))))
    assert (records.inputs.shape, records.inputs.dtype) == ((2, channels, 2, 4), torch.uint8)
    assert records.targets.tolist() == [1, 0]


def test_all_records_of_a_dataset_are_read_in_order() -> None:
    records = read_dataset(Items(*((torch.tensor([float(index)]), index) for index in range(2500))))
    assert records.inputs.flatten().tolist() == [float(index) for index in range(2500)]
    assert records.targets.tolist() == list(range(2500))
    inputs, targets = torch.zeros(3, 2), torch.arange(3)
    assert read_dataset(TensorDataset(inputs, targets)).inputs is inputs


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(OSError("the disk is gone"), id="cannot be read"),
        pytest.param((torch.zeros(3), 0), id="another shape"),
        pytest.param((torch.zeros(2),), id="no target"),
        pytest.param(5, id="no pair"),
        pytest.param(("text", 0), id="a text"),
        pytest.param((np.array(["text", "more"]), 0), id="an array of texts"),
        pytest.param(({"a": 1}, 0), id="several parts"),
    ],
)
def test_a_bad_record_of_a_dataset_is_named(bad: Any) -> None:
    with pytest.raises(BadRecord, match="record 2 "):
        read_dataset(Items((torch.zeros(2), 0), (torch.zeros(2), 1), bad))


def test_streams_and_empty_datasets_are_refused() -> None:
    with pytest.raises(InvalidValue, match="map-style"):
        read_dataset(Stream())
    with pytest.raises(BadRecord, match="no records"):
        read_dataset(Items())
