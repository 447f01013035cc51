"""Lines that are only added to: each is there whole, or not at all."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import lines_file


def test_lines_come_back_as_they_were_added(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    rows: list[dict[str, object]] = [{"step": 1, "loss": 0.1}, {"on": "ε, held out"}, {"nested": [1, {"two": None}]}]
    for row in rows:
        lines_file.append(path, row)
    assert lines_file.read(path) == rows
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert lines_file.read(tmp_path / "lines") == []


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_line_that_was_cut_off_is_not_there_and_does_not_spoil_the_next(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines_file.append(path, {"step": 1})
    whole = path.read_bytes()
    lines_file.append(path, {"step": 2, "on": "ε ε ε"})
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    assert lines_file.read(path) == [{"step": 1}]
    lines_file.append(path, {"step": 3})
    assert lines_file.read(path) == [{"step": 1}, {"step": 3}]


def test_a_first_line_that_was_cut_off_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b'{"step": ')
    assert lines_file.read(tmp_path / "lines") == []
    lines_file.append(tmp_path / "lines", {"step": 1})
    assert lines_file.read(tmp_path / "lines") == [{"step": 1}]


@pytest.mark.parametrize("line", [b"{", b'{"loss": NaN}', b'{"a": 1, "a": 2}', b"\xff\xfe", b""])
def test_a_whole_line_that_is_no_json_is_damage_and_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(DamagedFile, match=r"line 2 of .*lines cannot be read"):
        lines_file.read(path)


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}])
def test_what_json_has_no_word_for_is_refused_and_nothing_is_written(value: object, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines_file.append(path, {"step": 1})
    with pytest.raises(InvalidValue, match="line must be made of finite numbers"):
        lines_file.append(path, {"x": value})
    with pytest.raises(InvalidValue, match="line must be made of finite numbers"):
        lines_file.rewrite(path, [{"x": value}])
    assert lines_file.read(path) == [{"step": 1}]


def test_only_the_lines_that_are_kept_are_there_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for step in range(4):
        lines_file.append(path, {"step": step})
    lines_file.rewrite(path, [{"step": 0}, {"step": 1}])
    assert lines_file.read(path) == [{"step": 0}, {"step": 1}]
    lines_file.rewrite(path, [])
    assert lines_file.read(path) == []


def test_a_new_file_has_the_mode_that_was_asked_for_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for step in range(2):
        lines_file.append(path, {"step": step}, mode=0o600)
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*lines"):
        lines_file.append(tmp_path / "missing" / "lines", {"step": 1})
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*folder"):
        lines_file.read(tmp_path / "folder")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk: what goes beyond the size is not written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_lines_before_it_and_room_for_those_after(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines_file.append(path, {"step": 1})
    with largest_file(path.stat().st_size + 5), pytest.raises(StoreError, match=r"cannot write .*lines"):
        lines_file.append(path, {"step": 2})
    assert lines_file.read(path) == [{"step": 1}]
    lines_file.append(path, {"step": 3})
    assert lines_file.read(path) == [{"step": 1}, {"step": 3}]
