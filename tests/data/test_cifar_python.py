from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from lehr.data import cifar, cifar_python
from lehr.errors import BadRecord, StoreError

PATH = Path("data_batch_1")
ROWS = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)


def batch(**changed: object) -> bytearray:
    return bytearray(pickle.dumps({"data": ROWS, "labels": [3, 9]} | changed, protocol=2))


def test_both_layouts_hold_the_same_records() -> None:
    pickled = cifar_python.parsed(batch(), labels="labels", path=PATH)
    binary = bytearray(b"".join(bytes([label]) + row.tobytes() for label, row in zip([3, 9], ROWS, strict=True)))
    expected = cifar.parsed(binary, num_labels=1, path=PATH)
    assert pickled.inputs.equal(expected.inputs)
    assert pickled.targets.equal(expected.targets)


def test_the_named_labels_are_used() -> None:
    fine = cifar_python.parsed(batch(fine_labels=[99, 42], coarse_labels=[1, 2]), labels="fine_labels", path=PATH)
    assert fine.targets.tolist() == [99, 42]


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"data": [1, 2]}, "not an array of 3072 bytes"),
        ({"data": ROWS[:, :100]}, "not an array of 3072 bytes"),
        ({"labels": "39"}, "not a list"),
    ],
)
def test_other_content_is_refused_by_the_name_of_the_file(changed: dict[str, object], told: str) -> None:
    with pytest.raises(StoreError, match=f"data_batch_1: .*{told}"):
        cifar_python.parsed(batch(**changed), labels="labels", path=PATH)


def test_missing_fields_and_damage_are_refused() -> None:
    with pytest.raises(StoreError, match="no 'fine_labels'"):
        cifar_python.parsed(batch(), labels="fine_labels", path=PATH)
    with pytest.raises(StoreError, match="data_batch_1"):
        cifar_python.parsed(batch()[:-50], labels="labels", path=PATH)


@pytest.mark.parametrize("label", [-1, 256, "3", 1.0, None])
def test_a_bad_label_names_its_record(label: object) -> None:
    with pytest.raises(BadRecord, match="record 1 of data_batch_1"):
        cifar_python.parsed(batch(labels=[0, label]), labels="labels", path=PATH)


def test_a_label_too_few_names_the_record() -> None:
    with pytest.raises(BadRecord, match=r"record 1 .* no target"):
        cifar_python.parsed(batch(labels=[0]), labels="labels", path=PATH)
