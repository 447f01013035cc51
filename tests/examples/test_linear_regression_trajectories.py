"""The trajectories on linear regression are drawn; what they are is tested where they are computed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples.loading import example

regression = example("linear_regression_trajectories")


def test_it_draws_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["linear_regression_trajectories", "--out", str(tmp_path), "--seeds", "1"])
    regression.main()
    assert "SA-DPSGD, as many accepted" in capsys.readouterr().out
    assert 5_000 < (tmp_path / "trajectories.svg").stat().st_size < 100_000
