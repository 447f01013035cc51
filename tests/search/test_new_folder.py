"""A search that does not begin leaves no folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.errors import StoreError
from lehr.search.new_folder import new_folder


def test_a_folder_is_made_and_kept_where_all_goes_well(tmp_path: Path) -> None:
    with new_folder(tmp_path / "a/b"):
        (tmp_path / "a/b/file").touch()
    assert (tmp_path / "a/b/file").exists()


def filled(folder: Path) -> None:
    """Fails, with something in the folder, as an accountant might."""
    with new_folder(folder):
        (folder / "c").mkdir()
        (folder / "c/file").touch()
        raise LookupError


def test_what_was_made_is_taken_away_where_it_fails(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        filled(tmp_path / "a/b")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_that_was_there_stays(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        filled(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_and_one_that_cannot_be_made_are_refused_and_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="not empty"), new_folder(tmp_path):
        raise AssertionError
    with pytest.raises(StoreError, match="cannot use"), new_folder(tmp_path / "file/under"):
        raise AssertionError
    assert (tmp_path / "file").exists()
