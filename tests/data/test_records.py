"""TODO."""

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
    FromDataset,
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


def small() -> InMemory:
    return InMemory(torch.arange(12.0).view(4, 3), torch.tensor([5, 6, 7, 8]))


def test_a_batch_has_the_records_at_its_places_in_order_and_repeated() -> None:
    inputs, targets = small().batch(torch.tensor([3, 0, 3]))
    assert targets.tolist() == [8, 5, 8]
    assert inputs[:, 0].tolist() == [9.0, 0.0, 9.0]


def test_the_printed_form_shows_neither_values_nor_their_number() -> None:
    assert repr(small()) == "InMemory(inputs torch.float32 (3,), on cpu)"
    assert repr(small()) == repr(small().at(torch.tensor([1])))


@pytest.mark.parametrize(
    "num_inputs, num_targets, told",
    [(3, 2, "record 2 .*3 inputs"), (2, 3, "record 2 .*2 inputs")],
)
def test_a_record_without_its_other_half_is_named(num_inputs: int, num_targets: int, told: str) -> None:
    with pytest.raises(BadRecord, match=told):
        InMemory(torch.zeros(num_inputs), torch.zeros(num_targets))


def test_what_has_no_record_axis_is_refused() -> None:
    with pytest.raises(InvalidValue, match="inputs must be a tensor"):
        InMemory(torch.tensor(1.0), torch.zeros(1))
    with pytest.raises(InvalidValue, match="targets must be a tensor"):
        InMemory(torch.zeros(1), [1])  # type: ignore[arg-type]


COUNT = 12


def held(folder: Path) -> RecordSet:
    return image_folder.read_image_folder(folder, channels=1).records


def streamed(folder: Path) -> RecordSet:
    return image_folder.stream_image_folder(folder, image_side=8, channels=1, workers=0)


@pytest.fixture(params=[held, streamed])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> RecordSet:
    make: Callable[[Path], RecordSet] = request.param
    return make(write(tmp_path, COUNT, seed=1))


def test_some_of_the_records_are_those_at_their_places(records: RecordSet) -> None:
    places = torch.tensor([7, 2, 9])
    some = records.at(places)
    assert len(some) == 3
    for one, other in zip(some.batch(torch.arange(3)), records.batch(places), strict=True):
        assert torch.equal(one, other)
    assert list(some.contents()) == [list(records.contents())[place] for place in places]
    assert some.kind == records.kind


def test_nobody_has_the_shapes_and_types_of_somebody(records: RecordSet) -> None:
    nobody = records.batch(torch.zeros(0, dtype=torch.int64))
    somebody = records.batch(torch.tensor([3]))
    for none, one in zip(nobody, somebody, strict=True):
        assert (len(none), none.shape[1:], none.dtype) == (0, one.shape[1:], one.dtype)


def test_targets_alone_go_to_a_device(records: RecordSet) -> None:
    inputs, targets = records.targets_to("meta").batch(torch.tensor([0]))
    assert isinstance(inputs, torch.Tensor)
    assert (inputs.device.type, targets.device.type) == ("cpu", "meta")


def test_the_identity_has_the_role_and_the_records_in_it(records: RecordSet) -> None:
    def whole(some: RecordSet, role: str) -> bytes:
        return b"|".join(bytes(part) for part in some.identity(role))

    assert whole(records, "test") == whole(records, "test")
    others = [whole(records, "public"), whole(records.at(torch.arange(COUNT - 1)), "test")]
    assert len({whole(records, "test"), *others}) == 3


def of(inputs: Tensor) -> list[bytes]:
    return [bytes(content) for content in input_bytes(inputs)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_equal_records_have_equal_bytes_in_every_type_and_order_of_memory(dtype: torch.dtype) -> None:
    inputs = torch.tensor([[[0, 1], [1, 0]], [[1, 1], [0, 0]], [[0, 1], [1, 0]]], dtype=dtype)
    first, second, third = of(inputs)
    assert first == third != second
    assert of(inputs.transpose(1, 2).contiguous().transpose(1, 2)) == [first, second, third]


def test_zero_is_zero_whatever_its_sign() -> None:
    assert of(torch.tensor([[-0.0]])) == of(torch.tensor([[0.0]]))


def test_no_records_and_records_of_nothing() -> None:
    assert of(torch.zeros(0, 3)) == []
    assert of(torch.zeros(2, 0)) == [b"", b""]
    assert len(of(torch.zeros(3))) == 3


def test_more_records_than_are_copied_at_once_stay_in_order() -> None:
    numbers = torch.arange(10_000, dtype=torch.int64)
    assert of(numbers) == [number.to_bytes(8, sys.byteorder) for number in range(10_000)]


NUM = 10_000


class Fetched:
    """The same sample, without being held as two tensors; some batches can come out short."""

    def __init__(self, sample: InMemory, *, lost_targets: int = 0) -> None:
        self.records = sample
        self.lost_targets = lost_targets

    def __len__(self) -> int:
        return len(self.records)

    def batch(self, indices_B: Tensor) -> tuple[Any, Any]:
        inputs, targets = self.records.batch(indices_B)
        return {"pixels": inputs, "kind": (inputs > 0)}, (targets[: len(targets) - self.lost_targets],)


def sample(dtype: torch.dtype = torch.float32) -> InMemory:
    return InMemory(torch.ones(NUM, 2, dtype=dtype), torch.arange(NUM) % 7)


def refusal(bad: InMemory, num_classes: int | None = 7) -> str:
    with pytest.raises(BadRecord) as one:
        check_trainable(bad, num_classes=num_classes)
    with pytest.raises(BadRecord) as other:
        check_trainable(Fetched(bad), num_classes=num_classes)
    assert one.value.record == other.value.record
    return str(one.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.int64])
def test_good_records_pass(dtype: torch.dtype) -> None:
    check_trainable(sample(dtype), num_classes=7)
    check_trainable(Fetched(sample(dtype)), num_classes=7)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4095, 4096, NUM - 1])
def test_an_input_that_is_no_number_names_its_record(place: int, value: float) -> None:
    bad = sample()
    bad.inputs[place, 1] = value
    assert refusal(bad) == f"record {place} cannot be used: its input holds a NaN or an infinity"


@pytest.mark.parametrize("label", [-1, 7, 2**40])
def test_a_label_out_of_range_names_its_record(label: int) -> None:
    bad = sample()
    bad.targets[5000] = label
    assert refusal(bad) == f"record 5000 cannot be used: its label is {label}, not a whole number from 0 to 6"


@pytest.mark.parametrize("label", [0.5, math.nan, -1.0])
def test_a_label_that_is_not_whole_names_its_record(label: float) -> None:
    bad = InMemory(sample().inputs, sample().targets.to(torch.float64))
    check_trainable(bad, num_classes=7)
    bad.targets[3] = label
    assert refusal(bad).startswith("record 3 ")


def test_targets_that_are_no_classes_need_only_be_finite() -> None:
    bad = InMemory(sample().inputs, torch.full((NUM,), -2.5))
    check_trainable(bad, num_classes=None)
    bad.targets[8] = math.nan
    assert refusal(bad, num_classes=None).startswith("record 8 ")


def test_a_batch_with_targets_missing_names_the_first_record_without_one() -> None:
    with pytest.raises(BadRecord, match=r"record 4094 .*4094 of 4096 records have a target"):
        check_trainable(Fetched(sample(), lost_targets=2), num_classes=7)


@pytest.mark.parametrize("stated, fits", [(100, True), (34, True), (300, True), (33, False), (301, False)])
def test_a_stated_number_of_records_may_be_off_by_a_factor_of_three(stated: int, fits: bool) -> None:
    if fits:
        check_count(stated=stated, held=100)
        return
    with pytest.raises(InvalidValue, match="records must be within a factor of 3"):
        check_count(stated=stated, held=100)


def of_overlap(*values: float) -> InMemory:
    return InMemory(torch.tensor(values, dtype=torch.float32).view(-1, 1), torch.arange(len(values)))


def test_shared_records_are_told_by_their_places_in_the_second_set() -> None:
    assert overlap(of_overlap(1, 2, 3), of_overlap(4, 3, 5, 1)) == (1, 3)


def test_disjoint_and_empty_sets_share_nothing() -> None:
    assert not overlap(of_overlap(1, 2), of_overlap(3))
    assert not overlap(of_overlap(), of_overlap(3))
    assert not overlap(of_overlap(1), of_overlap())


def test_sets_that_cannot_be_compared_are_refused_instead_of_called_disjoint() -> None:
    stored_otherwise = InMemory(torch.tensor([[1]], dtype=torch.uint8), torch.zeros(1))
    with pytest.raises(InvalidValue, match="as the first are"):
        overlap(of_overlap(1), stored_otherwise)


def test_sketches_share_about_as_much_as_their_sets() -> None:
    whole, half, others = of_overlap(*range(4000)), of_overlap(*range(2000)), of_overlap(*range(4000, 8000))
    assert sketch(whole) == sketch(of_overlap(*range(3999, -1, -1)))
    assert 0.3 < len(sketch(whole) & sketch(half)) / len(sketch(half)) < 0.7
    assert not sketch(whole) & sketch(others)


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
    records = read_dataset(Items((image, np.int64(1)), (image, np.int64(0))))
    assert records.inputs.shape == (2, channels, 2, 4)
    assert records.inputs.dtype == torch.uint8
    assert records.targets.tolist() == [1, 0]


def test_all_records_are_read_once_in_order() -> None:
    records = read_dataset(Items(*((torch.tensor([float(place)]), place) for place in range(2500))))
    assert records.inputs.flatten().tolist() == [float(place) for place in range(2500)]
    assert records.targets.tolist() == list(range(2500))


def test_tensors_are_taken_as_they_are() -> None:
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
        pytest.param(({"a": 1}, 0), id="other parts"),
    ],
)
def test_a_bad_record_is_named(bad: Any) -> None:
    records = Items((torch.zeros(2), 0), (torch.zeros(2), 1), bad)
    with pytest.raises(BadRecord, match="record 2 "):
        read_dataset(records)


def test_a_bad_record_is_named_across_the_pieces_that_are_read_at_once() -> None:
    records = Items(*[(torch.zeros(1), 0)] * 1024, *[(torch.zeros(2), 0)] * 3)
    with pytest.raises(BadRecord, match="record 1024 "):
        read_dataset(records)


def test_a_missing_part_is_named() -> None:
    with pytest.raises(BadRecord, match=r"record 1 .* no part 'b'"):
        read_dataset(Items(({"a": 1, "b": 2}, 0), ({"a": 1}, 0)))


def test_what_cannot_be_fetched_by_place_or_held_as_two_tensors_is_refused() -> None:
    with pytest.raises(InvalidValue, match="map-style"):
        FromDataset(Stream())
    with pytest.raises(InvalidValue, match="one tensor for the input"):
        read_dataset(Items(((torch.zeros(2), torch.zeros(2)), 0)))
    with pytest.raises(BadRecord, match="no records"):
        read_dataset(Items())
