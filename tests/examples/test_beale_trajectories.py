"""The picture of the trajectories on the Beale function is drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples.loading import ROOT, example

beale = example("beale_trajectories")


def test_it_draws_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["beale_trajectories", "--out", str(tmp_path), "--seeds", "3"])
    monkeypatch.setattr(beale, "GRID", beale.GRID[:2])
    beale.main()
    assert "of 2 settings" in capsys.readouterr().out
    assert 5_000 < (tmp_path / "beale.svg").stat().st_size < 100_000


def test_the_page_counts_the_settings_of_the_grid() -> None:
    page = (ROOT / "docs/small_experiments.md").read_text()
    assert f"a grid of {len(beale.GRID)}\nsettings" in page
