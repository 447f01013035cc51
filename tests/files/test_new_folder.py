"""A folder appears whole or not at all, and what a killed process left of one is no obstacle."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.files import lock, new_folder

LOCK = "private/lock"


def filled(folder: Path, *, error: BaseException | None = None) -> None:
    with new_folder.made(folder, locked_by=LOCK) as beside:
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
    os.close(lock.taken(tmp_path / where / LOCK, for_what="a test"))  # it is free


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
    with new_folder.made(tmp_path / "b", locked_by=LOCK) as beside:
        with pytest.raises(StoreError, match="another process"):
            filled(tmp_path / "b")
        assert (beside / LOCK).exists()
    assert (tmp_path / "b").exists()


def test_a_place_that_cannot_be_used_is_said_so_and_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").touch()
    for place in ("file/under", "used"):
        with pytest.raises(StoreError, match="cannot use"), new_folder.made(tmp_path / place, locked_by=LOCK):
            pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "mine", "used"]


def test_a_folder_goes_in_one_step_where_what_follows_it_is_refused_and_stays_otherwise(tmp_path: Path) -> None:
    filled(tmp_path / "b")
    with pytest.raises(StoreError), new_folder.removed_if_refused(tmp_path / "b", locked_by=LOCK):
        raise StoreError("a disk that is full")
    assert (tmp_path / "b" / "c" / "file").exists()
    refusal = InvalidValue("name", allowed="another", given="this")
    with pytest.raises(InvalidValue), new_folder.removed_if_refused(tmp_path / "b", locked_by=LOCK):
        raise refusal
    assert list(tmp_path.iterdir()) == []
