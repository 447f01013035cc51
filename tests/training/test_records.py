"""The records of a run: every form of data, checks, splits, fingerprints, preprocessing."""

from __future__ import annotations

from typing import Any, Self

import pytest
import torch
from torch import Tensor

from lehr.data import DataSet, InMemory, Preparation
from lehr.data.augmentation import augmentation_by_name
from lehr.data.records import RecordSet
from lehr.data.split import PRIVATE as TRAINED_ON
from lehr.data.split import PUBLIC as FOR_ACCEPTANCE
from lehr.data.split import TEST as HELD_OUT
from lehr.data.split import Split
from lehr.errors import InvalidValue
from lehr.privacy.rng import RunKey
from lehr.training.records import InputPipeline, RunRecords, check_records
from tests.training.tiny import HELD, PRIVATE, PUBLIC, TEST

KEY, OTHER_KEY = RunKey(bytes(32)), RunKey(bytes(31) + b"\1")
BYTES = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)


def records(data: object = PRIVATE, **changed: Any) -> RunRecords:
    options: dict[str, Any] = {"records": 40, "num_classes": 3, "test": TEST, "public": None}
    return check_records(data, **{**options, "preparation": None, "name": None, **changed})


def held(part: RecordSet | None) -> InMemory:
    assert isinstance(part, InMemory)
    return part


def test_types_of_inputs_and_labels() -> None:
    private = held(records((PRIVATE[0].double(), PRIVATE[1].to(torch.int16))).private)
    assert (private.inputs.dtype, private.targets.dtype) == (torch.float32, torch.int64)
    assert held(records(dtype=torch.float64).private).inputs.dtype == torch.float64
    images = torch.zeros(HELD, 1, 4, 4, dtype=torch.uint8)
    assert held(records((images, PRIVATE[1])).private).inputs.dtype == torch.uint8
    vectors = torch.zeros(HELD, 3)
    assert held(records((PRIVATE[0], vectors), test=None).private).targets is vectors


def test_stated_number_overrides_the_data_set() -> None:
    whole = DataSet(
        name="tiny",
        train=InMemory(*PRIVATE),
        test=InMemory(*TEST),
        num_classes=3,
        shape=(1, 4, 4),
        preparation=Preparation(),
        records=40,
    )
    checked = records(whole, records=44, num_classes=4, test=None, name="ours")
    assert (checked.records, checked.num_classes, checked.name) == (44, 4, "ours")
    assert checked.test is not None
    with pytest.raises(InvalidValue, match="records"):
        records(whole, records=0)


def test_public_and_test_records_must_not_overlap() -> None:
    with pytest.raises(InvalidValue) as caught:
        records(public=(torch.cat([PUBLIC[0], TEST[0][:1]]), torch.cat([PUBLIC[1], TEST[1][:1]])))
    assert caught.value.name == "test"
    assert records(public=PUBLIC).public is not None


def zeroed(tensor: Tensor, index: int) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[index] = 0
    return changed


@pytest.mark.parametrize(
    "other",
    [
        records((zeroed(PRIVATE[0], -1), PRIVATE[1])),
        records((PRIVATE[0], zeroed(PRIVATE[1], 1))),
        records(test=(zeroed(TEST[0], 0), TEST[1])),
        records(test=None),
        records(public=PUBLIC),
    ],
    ids=["an input", "a label", "a test record", "no test", "public too"],
)
def test_fingerprint_changes_with_any_record(other: RunRecords) -> None:
    assert other.fingerprint(KEY) != records().fingerprint(KEY)


def test_fingerprint_depends_on_the_key() -> None:
    assert records().fingerprint(KEY) == records().fingerprint(KEY) != records().fingerprint(OTHER_KEY)


def test_splits_use_each_record_once() -> None:
    parts = torch.full((24,), TRAINED_ON, dtype=torch.uint8)
    parts[:10] = FOR_ACCEPTANCE
    split = records().with_acceptance(Split(parts))
    assert torch.equal(held(split.public).inputs, TEST[0][:10])
    assert torch.equal(held(split.test).inputs, TEST[0][10:])
    parts = torch.full((HELD,), TRAINED_ON, dtype=torch.uint8)
    parts[::4] = HELD_OUT
    split = records(test=None).with_held_out(Split(parts))
    assert torch.equal(held(split.held_out).inputs, PRIVATE[0][::4])
    assert len(split.private) == HELD - 12


class Full(InMemory):
    """Records that do not fit on any device."""

    def to(self, device: torch.device | str, *, targets_only: bool = False) -> Self:
        if not targets_only:
            raise torch.OutOfMemoryError("full")
        return super().to(device, targets_only=True)


def test_only_labels_move_if_records_do_not_fit() -> None:
    on_meta = RunRecords(
        name="tiny", private=Full(*PRIVATE), records=40, num_classes=3, preparation=Preparation(), test=InMemory(*TEST)
    ).to(torch.device("meta"))
    assert (held(on_meta.private).inputs.device.type, held(on_meta.private).targets.device.type) == ("cpu", "meta")
    assert held(on_meta.test).targets.device.type == "meta"


def pipeline(augmentation: str = "none", *, views: int = 1, preparation: Preparation | None = None) -> InputPipeline:
    return InputPipeline(
        preparation=preparation or Preparation(mean=(0.5,), std=(0.25,)),
        augmentation=augmentation_by_name(augmentation),
        views=views,
        device=torch.device("cpu"),
    )


def trained(look: InputPipeline, inputs: Any = BYTES) -> Any:
    return look.trained(inputs, torch.Generator().manual_seed(3))


def test_bytes_are_normalised_and_evaluated_without_augmentation() -> None:
    expected = (BYTES.float() / 255 - 0.5) / 0.25
    for look in (pipeline(), pipeline("simclr", views=4)):
        torch.testing.assert_close(look.seen(BYTES), expected)
    assert torch.equal(trained(pipeline()), expected)


def test_views_have_an_axis_unless_there_is_one() -> None:
    views = trained(pipeline(views=3))
    assert views.shape == (2, 3, 1, 4, 4)
    assert torch.equal(views[:, 0], views[:, 2])
    many = BYTES.repeat(8, 1, 1, 1)
    augmented = trained(pipeline("flip_crop"), many)
    assert augmented.shape == (16, 1, 4, 4)
    assert not torch.equal(augmented, trained(pipeline(), many))


def test_augmentation_comes_before_normalisation() -> None:
    black = (0 - 0.5) / 0.25
    assert float(trained(pipeline("flip_crop", views=8)).min()) == pytest.approx(black)  # the border is black, not grey


def test_records_of_several_tensors_cannot_be_augmented() -> None:
    parts = {"one": torch.rand(2, 3), "two": torch.rand(2, 3)}
    assert torch.equal(trained(pipeline(preparation=Preparation()), parts)["two"], parts["two"])
    with pytest.raises(InvalidValue, match="augmentation"):
        trained(pipeline("flip_crop"), parts)
