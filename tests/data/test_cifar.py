from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lehr.data import cifar
from lehr.errors import StoreError

PATH = Path("batch.bin")


def row(*labels: int) -> bytes:
    return bytes(labels) + bytes([1] * 1024 + [2] * 1024 + [3] * 1024)


@pytest.mark.parametrize("labels", [(7,), (19, 99)])
def test_the_last_label_is_used_and_the_planes_are_channels(labels: tuple[int, ...]) -> None:
    records = cifar.parsed(bytearray(row(*labels) * 2), num_labels=len(labels), path=PATH)
    assert records.targets.tolist() == [labels[-1]] * 2
    assert records.inputs.shape == (2, 3, 32, 32)
    assert records.inputs.dtype == torch.uint8
    assert records.inputs[1, :, 5, 6].tolist() == [1, 2, 3]


def test_a_part_of_a_record_is_refused() -> None:
    with pytest.raises(StoreError, match=r"batch\.bin: its 3,072 bytes are no whole number of records"):
        cifar.parsed(bytearray(row(1)[:-1]), num_labels=1, path=PATH)
