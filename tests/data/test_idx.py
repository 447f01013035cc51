from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from lehr.data import idx
from lehr.errors import StoreError
from tests.data.small_known import idx_bytes

IMAGES = idx_bytes(2, 2, 2, numbers=bytes(range(8)))


@pytest.mark.parametrize("compressed", [False, True])
def test_an_array_is_read_back(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(IMAGES) if compressed else IMAGES)
    assert idx.read(path).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert idx.parsed(bytearray(IMAGES), path=path).tolist() == idx.read(path).tolist()


@pytest.mark.parametrize("kind, code", [(0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")])
def test_every_type_of_number_is_read(tmp_path: Path, kind: int, code: str) -> None:
    numbers = np.array([-1, 0, 100], dtype=code)
    path = tmp_path / "numbers"
    path.write_bytes(idx_bytes(3, numbers=numbers.tobytes(), kind=kind))
    read = idx.read(path)
    assert read.tolist() == [-1, 0, 100]
    assert read.dtype.isnative


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"", id="empty"),
        pytest.param(IMAGES[:3], id="ends in the magic"),
        pytest.param(IMAGES[:9], id="ends in the header"),
        pytest.param(IMAGES[:-1], id="ends in the numbers"),
        pytest.param(IMAGES + b"\0", id="goes on"),
        pytest.param(b"\x89PNG" + IMAGES, id="other magic"),
        pytest.param(bytes([0, 0, 0x08, 0]), id="no axes"),
        pytest.param(bytes([0, 0, 0x07, 1]) + bytes(4), id="unknown type"),
        pytest.param(bytes([0, 0, 0x08, 255]) + bytes(4 * 255), id="too many axes"),
        pytest.param(idx_bytes(2**32 - 1, numbers=b"1"), id="a size below zero"),
        pytest.param(idx_bytes(2**31, 2**31, 2**31, numbers=b"1"), id="more than any memory"),
        pytest.param(idx_bytes(0, 2**32 - 1, 2**32 - 1, numbers=b""), id="no records, each larger than any memory"),
        pytest.param(idx_bytes(2**32 - 1, 0, numbers=b""), id="billions of records with nothing in them"),
    ],
)
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "hostile"
    for stored in (damaged, gzip.compress(damaged)):
        path.write_bytes(stored)
        with pytest.raises(StoreError, match="hostile"):
            idx.read(path)
    with pytest.raises(StoreError, match="hostile"):
        idx.parsed(bytearray(damaged), path=path)


def test_a_header_that_promises_more_than_is_allowed_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(IMAGES)
    with pytest.raises(StoreError, match="promises 8 bytes, more than 7"):
        idx.read(path, at_most=7)
