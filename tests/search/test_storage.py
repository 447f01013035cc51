from __future__ import annotations

from pathlib import Path

import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.search.storage import opened, shown, url_for


def test_a_study_is_a_file_in_its_folder_whatever_the_folder_is_called(tmp_path: Path) -> None:
    for name in ("plain", "with space", "50% off?", "a#b"):
        folder = tmp_path / name
        folder.mkdir()
        opened(url_for(folder))
        assert (folder / "study.db").exists()


def test_an_address_is_taken_as_it_is(tmp_path: Path) -> None:
    given = "postgresql+psycopg://me:secret@host:5432/studies"
    assert url_for(tmp_path, given) == given


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    assert "secret" not in shown("postgresql+psycopg://me:secret@host/studies")
    with pytest.raises(InvalidValue) as error:
        url_for(tmp_path, "me:secret@host")
    assert "secret" not in str(error.value)


def test_a_driver_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises((StoreError, InvalidValue), match="nosuchdatabase") as error:
        opened(url_for(tmp_path, "nosuchdatabase://me:secret@host/studies"))
    assert "secret" not in str(error.value)


def test_a_file_that_is_no_database_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("something else " * 100)
    with pytest.raises(StoreError, match=r"study\.db"):
        opened(url_for(tmp_path))
    assert (tmp_path / "study.db").read_text() == "something else " * 100
