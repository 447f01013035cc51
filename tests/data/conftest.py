"""A machine without data sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.data import catalogue


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data set in any folder that is searched: an empty home folder, which is also the current one."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(catalogue, "_SYSTEM", home / "usr")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(catalogue.VARIABLE, raising=False)
    monkeypatch.chdir(home)
    return home
