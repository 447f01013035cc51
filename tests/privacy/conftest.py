"""Processes that spend privacy, started once for all tests, and folders in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.privacy.spending import MEMORY, Spenders, spenders


@pytest.fixture(scope="session")
def script() -> Iterator[Spenders]:
    with spenders() as script:
        yield script


@pytest.fixture
def memory_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory, and all other temporary folders too: there, flushing a file takes no time."""
    monkeypatch.setattr(tempfile, "tempdir", MEMORY)
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
