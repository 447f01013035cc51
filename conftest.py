"""Settings for the examples in the Markdown pages and in the modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Looking for examples loads every module, and these cannot be loaded without Triton.
NEED_TRITON = ["src/lehr/gradients/triton_kernels.py", "tests/gradients/triton_twins.py"]
collect_ignore = [] if find_spec("triton") else NEED_TRITON


@pytest.fixture(autouse=True)
def _no_fits_remembered() -> Iterator[None]:
    """Tests train on the same few records with all kinds of settings, which is no search of theirs."""
    yield
    if "lehr.training.earlier_fits" in sys.modules:  # nothing is loaded for it
        sys.modules["lehr.training.earlier_fits"].forget()


@pytest.fixture(autouse=True)
def _pages_run_in_a_folder_of_their_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page writes files as its reader would, into the current folder; that must not be the repository."""
    if request.node.path.suffix == ".md":
        folder: Path = request.getfixturevalue("tmp_path")
        monkeypatch.chdir(folder)
