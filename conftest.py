"""Settings for the examples in the Markdown pages."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _pages_run_in_a_folder_of_their_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page writes files as its reader would, into the current folder; that must not be the repository."""
    if request.node.path.suffix == ".md":
        folder: Path = request.getfixturevalue("tmp_path")
        monkeypatch.chdir(folder)
