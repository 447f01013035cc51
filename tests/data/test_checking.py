from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lehr.data.checking import check, check_count
from lehr.data.in_memory import InMemory
from lehr.errors import BadRecord, InvalidValue

NUM = 10_000


class Fetched:
    """The same records, without being held as two tensors; some batches can come out short."""

    def __init__(self, records: InMemory, *, lost_targets: int = 0) -> None:
        self.records = records
        self.lost_targets = lost_targets

    def __len__(self) -> int:
        return len(self.records)

    def batch(self, places_B: Tensor) -> tuple[Any, Any]:  # noqa: N803
        inputs, targets = self.records.batch(places_B)
        return {"pixels": inputs, "kind": (inputs > 0)}, (targets[: len(targets) - self.lost_targets],)


def records(dtype: torch.dtype = torch.float32) -> InMemory:
    return InMemory(torch.ones(NUM, 2, dtype=dtype), torch.arange(NUM) % 7)


def refusal(bad: InMemory, num_classes: int | None = 7) -> str:
    with pytest.raises(BadRecord) as one:
        check(bad, num_classes=num_classes)
    with pytest.raises(BadRecord) as other:
        check(Fetched(bad), num_classes=num_classes)
    assert one.value.record == other.value.record
    return str(one.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.int64])
def test_good_records_pass(dtype: torch.dtype) -> None:
    check(records(dtype), num_classes=7)
    check(Fetched(records(dtype)), num_classes=7)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 4095, 4096, NUM - 1])
def test_an_input_that_is_no_number_names_its_record(place: int, value: float) -> None:
    bad = records()
    bad.inputs[place, 1] = value
    assert refusal(bad) == f"record {place} cannot be used: its input holds a NaN or an infinity"


@pytest.mark.parametrize("label", [-1, 7, 2**40])
def test_a_label_out_of_range_names_its_record(label: int) -> None:
    bad = records()
    bad.targets[5000] = label
    assert refusal(bad) == f"record 5000 cannot be used: its label is {label}, not a whole number from 0 to 6"


@pytest.mark.parametrize("label", [0.5, math.nan, -1.0])
def test_a_label_that_is_not_whole_names_its_record(label: float) -> None:
    bad = InMemory(records().inputs, records().targets.to(torch.float64))
    check(bad, num_classes=7)
    bad.targets[3] = label
    assert refusal(bad).startswith("record 3 ")


def test_the_first_bad_record_is_named() -> None:
    bad = records()
    bad.targets[[9000, 41, 42]] = 99
    assert refusal(bad).startswith("record 41 ")


def test_targets_that_are_no_classes_need_only_be_finite() -> None:
    bad = InMemory(records().inputs, torch.full((NUM,), -2.5))
    check(bad, num_classes=None)
    bad.targets[8] = math.nan
    assert refusal(bad, num_classes=None).startswith("record 8 ")


def test_no_records_are_refused() -> None:
    assert "there are no records" in refusal(records().at(torch.tensor([], dtype=torch.int64)))


def test_a_batch_with_targets_missing_names_the_first_record_without_one() -> None:
    with pytest.raises(BadRecord, match=r"record 4094 .*4096 records asked for, 4094 have a target"):
        check(Fetched(records(), lost_targets=2), num_classes=7)


def test_a_number_of_classes_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidValue, match="num_classes"):
        check(records(), num_classes=0)


@pytest.mark.parametrize("stated, fits", [(100, True), (34, True), (300, True), (33, False), (301, False)])
def test_a_stated_number_of_records_may_be_off_by_a_factor_of_three(stated: int, fits: bool) -> None:
    if fits:
        check_count(stated=stated, held=100)
        return
    with pytest.raises(InvalidValue, match="records must be within a factor of 3"):
        check_count(stated=stated, held=100)
