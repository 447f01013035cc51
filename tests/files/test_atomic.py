"""One holder at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.planning.budget import Budget


def test_text_comes_back_as_it_was(tmp_path: Path) -> None:
    atomic.write(tmp_path / "a.json", "ε ≤ 3\n")
    assert atomic.read(tmp_path / "a.json") == "ε ≤ 3\n"


def test_what_stood_there_is_replaced_and_nothing_else_is_left_behind(tmp_path: Path) -> None:
    atomic.write(tmp_path / "a.json", "first, and longer")
    atomic.write(tmp_path / "a.json", "second", overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "second")]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        atomic.write(target, "half a character: \ud800", overwrite=True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "old")]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    atomic.write(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*nowhere/a.json: No such file"):
        atomic.write(tmp_path / "nowhere" / "a.json", "text")


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="is not a file"):
        atomic.write(tmp_path / "pipe", "text")


@pytest.mark.parametrize("name", ["missing", "folder"])
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=f"cannot read .*{name}"):
        atomic.read(tmp_path / name)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StoreError, match="not UTF-8"):
        atomic.read(tmp_path / "bytes")


def test_another_file_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    for refuse in (atomic.refuse_to_replace, lambda path, overwrite: atomic.write(path, "new")):
        with pytest.raises(StoreError, match="it is there already, and is replaced only with --overwrite"):
            refuse(tmp_path / "a.json", overwrite=False)
    assert (tmp_path / "a.json").read_text() == "old"


def test_a_database_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "clinic.budget"
    with Budget.create(path, dataset="clinic", epsilon=1.0, delta=1e-5):
        pass
    before = path.read_bytes()
    assert atomic.is_database(path)
    with pytest.raises(StoreError, match="a budget, a ledger or another database is there"):
        atomic.write(path, "text", overwrite=True)
    assert path.read_bytes() == before


def test_a_name_that_no_file_can_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "x" * 300):
        with pytest.raises(StoreError, match=f"cannot write .*{name}"):
            atomic.write(tmp_path / name, "text")
        with pytest.raises(StoreError, match=f"cannot read .*{name}"):
            atomic.read(tmp_path / name)


def test_what_is_private_is_for_its_owner_alone_also_where_it_replaces_something(tmp_path: Path) -> None:
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
        with pytest.raises(StoreError, match=r"not a regular file|more than the .* that are allowed"):
            read(path)


def test_a_limit_is_the_most_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    assert len(atomic.read_bytes(tmp_path / "file", at_most=10)) == 10
    with pytest.raises(StoreError, match="it has 10 bytes, more than the 9"):
        atomic.read_bytes(tmp_path / "file", at_most=9)
    with pytest.raises(StoreError, match="more than the 9 bytes"):  # one whose size the system does not tell
        atomic.read_bytes("/proc/self/status", at_most=9)


def test_a_second_one_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = atomic.take_lock(tmp_path / "lock", for_what="the run")
    with pytest.raises(StoreError, match="the run: another process"):
        atomic.take_lock(tmp_path / "lock", for_what="the run")
    os.close(first)
    os.close(atomic.take_lock(tmp_path / "lock", for_what="the run"))
    assert (tmp_path / "lock").stat().st_mode & 0o077 == 0


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        atomic.take_lock(tmp_path / "lock", for_what="the run")
    assert not (tmp_path / "elsewhere").exists()


LOCK = "private/lock"


def filled(folder: Path, *, error: BaseException | None = None) -> None:
    with atomic.new_folder(folder, locked_by=LOCK) as beside:
        (beside / "c").mkdir()
        (beside / "c" / "file").touch()
        assert not folder.exists() or not any(folder.iterdir())
        if error is not None:
            raise error


@pytest.mark.parametrize("where", ["a/b", "there", "link"])
def test_a_folder_is_made_where_there_is_none_or_an_empty_one(tmp_path: Path, where: str) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    filled(tmp_path / where)
    assert (tmp_path / where / "c" / "file").exists()
    assert (tmp_path / where / "private").stat().st_mode & 0o077 == 0
    assert (tmp_path / "link").is_symlink()
    os.close(atomic.take_lock(tmp_path / where / LOCK, for_what="a test"))  # it is free


@pytest.mark.parametrize("error", [LookupError(), KeyboardInterrupt()])
def test_what_was_made_is_taken_away_where_it_fails(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        filled(tmp_path / "a/b", error=error)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(type(error)):
        filled(tmp_path / "empty", error=error)
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


@pytest.mark.parametrize("left", [".b.part", ".b.part/private", ".b.part/private/lock"])
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path, left: str) -> None:
    (tmp_path / left).mkdir(parents=True) if not left.endswith("lock") else None
    if left.endswith("lock"):
        (tmp_path / left).parent.mkdir(parents=True)
        (tmp_path / left).touch()
    filled(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_two_processes_do_not_make_the_same_folder(tmp_path: Path) -> None:
    with atomic.new_folder(tmp_path / "b", locked_by=LOCK) as beside:
        with pytest.raises(StoreError, match="another process"):
            filled(tmp_path / "b")
        assert (beside / LOCK).exists()
    assert (tmp_path / "b").exists()


def test_a_place_that_cannot_be_used_is_said_so_and_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").touch()
    for place in ("file/under", "used"):
        with pytest.raises(StoreError, match="cannot use"), atomic.new_folder(tmp_path / place, locked_by=LOCK):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine", "used"]


def test_a_folder_goes_in_one_step_where_what_follows_it_is_refused_and_stays_otherwise(tmp_path: Path) -> None:
    filled(tmp_path / "b")
    with pytest.raises(StoreError), atomic.remove_if_refused(tmp_path / "b", locked_by=LOCK):
        raise StoreError("a disk that is full")
    assert (tmp_path / "b" / "c" / "file").exists()
    refusal = InvalidValue("name", allowed="another", given="this")
    with pytest.raises(InvalidValue), atomic.remove_if_refused(tmp_path / "b", locked_by=LOCK):
        raise refusal
    assert list(tmp_path.iterdir()) == []
