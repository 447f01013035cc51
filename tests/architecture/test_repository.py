"""What holds for the files of the repository. That these tests can fail is shown in tests/tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.repository import declared, explained, large_files, local_paths, pinned, tracked_files

ROOT = Path(__file__).parents[2]


def test_no_file_is_large_or_names_a_path_of_one_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout says which files are under version control")
    files = tracked_files(ROOT)
    assert local_paths(files) == []
    assert large_files(files) == []


def test_every_dependency_is_pinned_and_explained() -> None:
    names, pins = declared(ROOT / "pyproject.toml"), pinned(ROOT / "constraints.txt")
    assert names - set(pins) == set()
    assert names - explained(ROOT / "docs" / "dependencies.md") == set()
    assert pins["torch"] == "2.13.0"  # the tested version
