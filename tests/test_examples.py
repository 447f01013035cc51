"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_demo_trains_on_any_machine_and_leaves_a_report(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples/demo.py")],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "LEHR_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "at a proven ε of 8" in finished.stdout
    assert (tmp_path / "demo/run/report.html").stat().st_size > 10_000
