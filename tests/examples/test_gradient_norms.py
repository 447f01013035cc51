"""The norms of gradients before clipping."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.in_turn(2)
def test_the_example_draws_its_picture_and_prints_a_row_for_every_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples/gradient_norms.py"), "--steps", "3", "--picture", "norms.svg"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    rows = [line.split() for line in finished.stdout.splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows] == [
        (activation, method)
        for method in ("SGD", "DPSGD")
        for activation in ("relu", "tanh", "tempered_sigmoid(mnist)")
    ]
    assert [row[2] for row in rows[:3]] == [row[2] for row in rows[3:]]  # both begin at the same weights
    assert {row[-1] for row in rows[:3]} == {"infinity"}
    assert all(0 < float(row[-1]) < 10 for row in rows[3:])
    assert (tmp_path / "norms.svg").stat().st_size < 100_000
    assert [path.name for path in tmp_path.iterdir()] == ["norms.svg"]
