"""The picture of the family."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_example_draws_the_picture_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples/tempered_sigmoids.py"), "--picture", str(tmp_path / "family.svg")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    drawn, kept = (path.read_text() for path in (tmp_path / "family.svg", ROOT / "docs/pictures/tempered_sigmoids.svg"))
    for words in ("(2, 2, 1): tanh", "(1.58, 3, 0.71): cifar-10", "a step, as T → ∞"):
        assert words in drawn
        assert words in kept
    assert len(drawn) < 100_000
