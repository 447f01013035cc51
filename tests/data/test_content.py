from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lehr.data import content
from lehr.errors import StoreError


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_reads_the_same_stored_or_compressed_whatever_its_name(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"hello") if compressed else b"hello")
    assert content.read(path, num_bytes=5) == b"hello"
    assert content.read_up_to(path, at_most=5) == b"hello"


@pytest.mark.parametrize("num_bytes, told", [(4, "goes on after the 4 bytes"), (6, "ends after 5 bytes of 6")])
def test_a_file_of_another_length_is_refused(tmp_path: Path, num_bytes: int, told: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    with pytest.raises(StoreError, match=told):
        content.read(path, num_bytes=num_bytes)


def test_a_decompression_bomb_is_read_no_further_than_it_should_go(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(50 * 1024**2)))
    with content.opened(path) as stream:
        with pytest.raises(StoreError, match="goes on"):
            content.exactly(stream, 1000, path=path)
        assert stream.tell() == 1001


def test_more_than_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(StoreError, match=r"more than the 1,000 bytes"):
        content.read_up_to(path, at_most=1000)


def test_a_promise_of_more_than_the_memory_costs_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    with pytest.raises(StoreError, match="ends after 5 bytes"):
        content.read(path, num_bytes=10**17)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: raw[:12] + b"\xff\xff" + raw[14:], lambda raw: raw[:3]]
)
def test_a_damaged_compressed_file_is_named(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "file.gz"
    assert callable(damage)
    path.write_bytes(damage(gzip.compress(bytes(range(256)) * 50)))
    with pytest.raises(StoreError, match=r"file\.gz"):
        content.read_up_to(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere: No such file"):
        content.read(tmp_path / "nowhere", num_bytes=1)
    with pytest.raises(StoreError, match="not a regular file"):
        content.read(tmp_path, num_bytes=1)
