"""Files and folders are there whole or not at all, and have one holder at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.planning.budget import Budget


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    atomic.write(tmp_path / "a.json", "first, and longer")
    atomic.write(tmp_path / "a.json", "ε ≤ 3\n", overwrite=True)
    assert atomic.read(tmp_path / "a.json") == "ε ≤ 3\n"
    with pytest.raises(UnicodeEncodeError):
        atomic.write(tmp_path / "a.json", "half a character: \ud800", overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "ε ≤ 3\n")]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    atomic.write(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("name", ["nowhere/a.json", "pipe", "folder", "loop", "x" * 300])
def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match=f"cannot write .*{name}"):
        atomic.write(tmp_path / name, "text")


@pytest.mark.parametrize("name", ["missing", "folder", "bytes", "loop", "x" * 300, "a\x00b"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StoreError, match=f"cannot read .*{name}"):
        atomic.read(tmp_path / name)


def test_another_file_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    for refuse in (atomic.refuse_to_replace, lambda path, overwrite: atomic.write(path, "new")):
        with pytest.raises(StoreError, match="--overwrite"):
            refuse(tmp_path / "a.json", overwrite=False)
    assert (tmp_path / "a.json").read_text() == "old"


def test_a_database_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "clinic.budget"
    Budget.create(path, dataset="clinic", epsilon=1.0, delta=1e-5).close()
    before = path.read_bytes()
    assert atomic.is_database(path)
    with pytest.raises(StoreError, match="database"):
        atomic.write(path, "text", overwrite=True)
    assert path.read_bytes() == before


def test_a_private_file_is_for_its_owner_alone_also_where_it_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "private.json"
    path.write_text("old")
    path.chmod(0o644)
    atomic.write_private(path, "new")
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
    for read in (atomic.read, strict_json.read_lines):
        with pytest.raises(StoreError, match=r"not a regular file|more than"):
            read(path)


def test_no_more_bytes_are_read_than_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    assert len(atomic.read_bytes(tmp_path / "file", at_most=10)) == 10
    for path in (tmp_path / "file", Path("/proc/self/status")):  # whose size the system does not tell
        with pytest.raises(StoreError, match="more than 9 bytes"):
            atomic.read_bytes(path, at_most=9)


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    first = atomic.take_lock(tmp_path / "lock", for_what="the run")
    with pytest.raises(StoreError, match="the run: another process"):
        atomic.take_lock(tmp_path / "lock", for_what="the run")
    os.close(first)
    os.close(atomic.take_lock(tmp_path / "lock", for_what="the run"))
    assert (tmp_path / "lock").stat().st_mode & 0o077 == 0


def test_a_link_in_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        atomic.take_lock(tmp_path / "lock", for_what="the run")
    assert not (tmp_path / "elsewhere").exists()


LOCK = "private/lock"


def fill(folder: Path, *, error: BaseException | None = None) -> None:
    with atomic.new_folder(folder, locked_by=LOCK) as hidden:
        (hidden / "c").mkdir()
        (hidden / "c" / "file").touch()
        assert not folder.exists() or not any(folder.iterdir())
        if error is not None:
            raise error


@pytest.mark.parametrize("where", ["a/b", "there", "link"])
def test_a_folder_is_made_where_there_is_none_or_an_empty_one(tmp_path: Path, where: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    fill(tmp_path / where)
    assert (tmp_path / where / "c" / "file").exists()
    assert (tmp_path / where / "private").stat().st_mode & 0o077 == 0
    assert (tmp_path / "link").is_symlink()
    os.close(atomic.take_lock(tmp_path / where / LOCK, for_what="a test"))  # it is free


@pytest.mark.parametrize("error", [LookupError(), KeyboardInterrupt(), RuntimeError()])
def test_a_folder_that_could_not_be_filled_is_removed(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        fill(tmp_path / "a/b", error=error)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(type(error)):
        fill(tmp_path / "empty", error=error)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


@pytest.mark.parametrize("left", ["", "private", "private/lock"])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, left: str) -> None:
    (tmp_path / ".b.part" / left).mkdir(parents=True)
    if left == LOCK:
        (tmp_path / ".b.part" / left).rmdir()
        (tmp_path / ".b.part" / left).touch()
    fill(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_two_processes_do_not_make_the_same_folder(tmp_path: Path) -> None:
    with atomic.new_folder(tmp_path / "b", locked_by=LOCK) as hidden:
        with pytest.raises(StoreError, match="another process"):
            fill(tmp_path / "b")
        assert (hidden / LOCK).exists()
    assert (tmp_path / "b").exists()


def test_a_place_that_cannot_be_used_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").touch()
    for place in ("file/under", "used"):
        with pytest.raises(StoreError, match="cannot use"), atomic.new_folder(tmp_path / place, locked_by=LOCK):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine", "used"]


def test_a_new_folder_is_removed_where_the_next_step_is_refused_and_stays_otherwise(tmp_path: Path) -> None:
    fill(tmp_path / "b")
    with pytest.raises(StoreError), atomic.remove_if_refused(tmp_path / "b", locked_by=LOCK):
        raise StoreError("a disk that is full")
    assert (tmp_path / "b" / "c" / "file").exists()
    refusal = InvalidValue("name", allowed="another", given="this")
    with pytest.raises(InvalidValue), atomic.remove_if_refused(tmp_path / "b", locked_by=LOCK):
        raise refusal
    assert list(tmp_path.iterdir()) == []
