"""Data in any form, as records that were looked at."""

from __future__ import annotations

from typing import Any, Self

import pytest
import torch
from torch import Tensor

from lehr.data import DataSet, InMemory, Preparation
from lehr.data.records import RecordSet
from lehr.data.split import PRIVATE as TRAINED_ON
from lehr.data.split import PUBLIC as FOR_ACCEPTANCE
from lehr.data.split import TEST as HELD_OUT
from lehr.data.split import Split
from lehr.errors import InvalidValue
from lehr.privacy.rng import RunKey
from lehr.training.records import RunRecords, check_records
from tests.training.tiny import HELD, PRIVATE, PUBLIC, TEST

KEY, OTHER_KEY = RunKey(bytes(32)), RunKey(bytes(31) + b"\1")


def given(data: object = PRIVATE, **changed: Any) -> RunRecords:
    said: dict[str, Any] = {"records": 40, "num_classes": 3, "test": TEST, "public": None}
    return check_records(data, **{**said, "preparation": None, "name": None, **changed})


def held(records: RecordSet | None) -> InMemory:
    assert isinstance(records, InMemory)
    return records


def test_inputs_take_the_type_of_the_model_and_labels_that_of_losses() -> None:
    found = given((PRIVATE[0].double(), PRIVATE[1].to(torch.int16)))
    assert (held(found.private).inputs.dtype, held(found.private).targets.dtype) == (torch.float32, torch.int64)
    assert given(dtype=torch.float64).test is not None
    assert held(given(dtype=torch.float64).private).inputs.dtype == torch.float64


def test_bytes_stay_bytes() -> None:
    images = torch.zeros(HELD, 1, 4, 4, dtype=torch.uint8)
    assert held(given((images, PRIVATE[1])).private).inputs.dtype == torch.uint8


def test_targets_with_more_than_one_number_a_record_are_left_alone() -> None:
    many = torch.zeros(HELD, 3)
    assert held(given((PRIVATE[0], many), test=None).private).targets is many


def test_a_stated_number_goes_over_that_of_a_data_set() -> None:
    whole = DataSet(
        name="tiny",
        train=InMemory(*PRIVATE),
        test=InMemory(*TEST),
        num_classes=3,
        shape=(1, 4, 4),
        preparation=Preparation(),
        records=40,
    )
    found = given(whole, records=44, num_classes=4, test=None, name="ours")
    assert (found.records, found.num_classes, found.name) == (44, 4, "ours")
    assert found.test is not None
    with pytest.raises(InvalidValue, match="records must be a whole number"):
        given(whole, records=0)


def test_public_and_test_records_must_not_overlap() -> None:
    with pytest.raises(InvalidValue, match="test must be other records"):
        given(public=(torch.cat([PUBLIC[0], TEST[0][:1]]), torch.cat([PUBLIC[1], TEST[1][:1]])))
    assert given(public=PUBLIC).public is not None


def changed_at(tensor: Tensor, place: int) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[place] = 0
    return changed


@pytest.mark.parametrize(
    "other",
    [
        given((changed_at(PRIVATE[0], -1), PRIVATE[1])),
        given((PRIVATE[0], changed_at(PRIVATE[1], 1))),
        given(test=(changed_at(TEST[0], 0), TEST[1])),
        given(test=None),
        given(public=PUBLIC),
    ],
    ids=["an input", "a label", "a test record", "no test", "public too"],
)
def test_a_fingerprint_changes_with_any_record(other: RunRecords) -> None:
    assert other.fingerprint(KEY) != given().fingerprint(KEY)


def test_a_fingerprint_says_nothing_without_the_key() -> None:
    assert given().fingerprint(KEY) == given().fingerprint(KEY) != given().fingerprint(OTHER_KEY)


def test_a_split_of_the_test_records_gives_each_to_one_use() -> None:
    parts = torch.full((24,), TRAINED_ON, dtype=torch.uint8)
    parts[:10] = FOR_ACCEPTANCE
    found = given().with_acceptance(Split(parts))
    assert found.test is not None
    assert found.public is not None
    assert torch.equal(held(found.public).inputs, TEST[0][:10])
    assert torch.equal(held(found.test).inputs, TEST[0][10:])


def test_a_split_of_the_private_records_gives_each_to_one_use() -> None:
    parts = torch.full((HELD,), TRAINED_ON, dtype=torch.uint8)
    parts[::4] = HELD_OUT
    found = given(test=None).with_held_out(Split(parts))
    assert found.held_out is not None
    assert torch.equal(held(found.held_out).inputs, PRIVATE[0][::4])
    assert len(found.private) == HELD - 12


class Full(InMemory):
    """Records that do not fit on any device."""

    def to(self, device: torch.device | str, *, targets_only: bool = False) -> Self:
        if not targets_only:
            raise torch.OutOfMemoryError("full")
        return super().to(device, targets_only=True)


def test_where_records_do_not_fit_on_the_device_their_labels_go_there_alone() -> None:
    on_meta = RunRecords(
        name="tiny", private=Full(*PRIVATE), records=40, num_classes=3, preparation=Preparation(), test=InMemory(*TEST)
    ).to(torch.device("meta"))
    assert (held(on_meta.private).inputs.device.type, held(on_meta.private).targets.device.type) == ("cpu", "meta")
    assert on_meta.test is not None
    assert held(on_meta.test).targets.device.type == "meta"
