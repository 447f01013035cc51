from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.errors import StoreError
from lehr.files import lines_file, whole_file
from lehr.planning.budget import Budget


def test_text_comes_back_as_it_was(tmp_path: Path) -> None:
    whole_file.write(tmp_path / "a.json", "ε ≤ 3\n")
    assert whole_file.read(tmp_path / "a.json") == "ε ≤ 3\n"


def test_what_stood_there_is_replaced_and_nothing_else_is_left_behind(tmp_path: Path) -> None:
    whole_file.write(tmp_path / "a.json", "first, and longer")
    whole_file.write(tmp_path / "a.json", "second", overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "second")]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        whole_file.write(target, "half a character: \ud800", overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "old")]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    whole_file.write(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*nowhere/a.json: No such file"):
        whole_file.write(tmp_path / "nowhere" / "a.json", "text")


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="is not a file"):
        whole_file.write(tmp_path / "pipe", "text")


@pytest.mark.parametrize("name", ["missing", "folder"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=f"cannot read .*{name}"):
        whole_file.read(tmp_path / name)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StoreError, match="not UTF-8"):
        whole_file.read(tmp_path / "bytes")


def test_another_file_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    for refuse in (whole_file.refuse_to_replace, lambda path, overwrite: whole_file.write(path, "new")):
        with pytest.raises(StoreError, match="it is there already, and is replaced only with --overwrite"):
            refuse(tmp_path / "a.json", overwrite=False)
    assert (tmp_path / "a.json").read_text() == "old"


def test_a_database_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "clinic.budget"
    with Budget.create(path, dataset="clinic", epsilon=1.0, delta=1e-5):
        pass
    before = path.read_bytes()
    assert whole_file.is_database(path)
    with pytest.raises(StoreError, match="a budget, a ledger or another database is there"):
        whole_file.write(path, "text", overwrite=True)
    assert path.read_bytes() == before


def test_a_name_that_no_file_can_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "x" * 300):
        with pytest.raises(StoreError, match=f"cannot write .*{name}"):
            whole_file.write(tmp_path / name, "text")
        with pytest.raises(StoreError, match=f"cannot read .*{name}"):
            whole_file.read(tmp_path / name)


def test_what_is_private_is_for_its_owner_alone_also_where_it_replaces_something(tmp_path: Path) -> None:
    path = tmp_path / "private.json"
    path.write_text("old")
    path.chmod(0o644)
    whole_file.write_private(path, "new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("what", ["/dev/zero", "/dev/full", "pipe", "folder", "too large"])
def test_only_a_regular_file_within_the_limit_is_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "file.json"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "too large":
        path.touch()
        os.truncate(path, 1024**4)  # it takes no room, and would take a terabyte of memory
    else:
        path.symlink_to(what)
    for read in (whole_file.read, lines_file.read):
        with pytest.raises(StoreError, match=r"not a regular file|more than the .* that are allowed"):
            read(path)


def test_a_limit_is_the_most_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    assert len(whole_file.read_bytes(tmp_path / "file", at_most=10)) == 10
    with pytest.raises(StoreError, match="it has 10 bytes, more than the 9"):
        whole_file.read_bytes(tmp_path / "file", at_most=9)
    with pytest.raises(StoreError, match="more than the 9 bytes"):  # one whose size the system does not tell
        whole_file.read_bytes("/proc/self/status", at_most=9)
