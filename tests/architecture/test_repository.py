"""What holds for the files of the repository. That these tests can fail is shown in tests/tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.pins import declared, explained, pinned
from tools.tracked_files import large_files, local_paths, tracked

ROOT = Path(__file__).parents[2]


@pytest.fixture
def files() -> tuple[Path, ...]:
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout says which files are under version control")
    return tracked(ROOT)


def test_no_file_names_a_path_of_one_machine(files: tuple[Path, ...]) -> None:
    assert local_paths(files) == []


def test_no_file_is_large(files: tuple[Path, ...]) -> None:
    assert large_files(files) == []


def test_every_dependency_is_pinned() -> None:
    assert declared(ROOT / "pyproject.toml") - set(pinned(ROOT / "constraints.txt")) == set()


def test_every_dependency_is_explained() -> None:
    assert declared(ROOT / "pyproject.toml") - explained(ROOT / "docs" / "dependencies.md") == set()


def test_torch_is_pinned_to_the_tested_version() -> None:
    assert pinned(ROOT / "constraints.txt")["torch"] == "2.13.0"
