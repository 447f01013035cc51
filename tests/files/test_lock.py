"""One holder at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.errors import StoreError
from lehr.files import lock


def test_a_second_one_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = lock.taken(tmp_path / "lock", for_what="the run")
    with pytest.raises(StoreError, match="the run: another process"):
        lock.taken(tmp_path / "lock", for_what="the run")
    os.close(first)
    os.close(lock.taken(tmp_path / "lock", for_what="the run"))
    assert (tmp_path / "lock").stat().st_mode & 0o077 == 0


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        lock.taken(tmp_path / "lock", for_what="the run")
    assert not (tmp_path / "elsewhere").exists()
