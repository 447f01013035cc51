"""The first example of the README trains on any machine and leaves a report."""

from __future__ import annotations

from pathlib import Path

import pytest

import lehr
from tests.examples.loading import example, run_main


def test_demo_trains_and_writes_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LEHR_DATA", str(tmp_path))
    fit = lehr.fit
    monkeypatch.setattr(lehr, "fit", lambda *given, **named: fit(*given, **{**named, "steps": 30}))  # of 400
    run_main(example("demo", needs="torch"), monkeypatch)
    assert "at a proven ε of 3" in capsys.readouterr().out
    assert (tmp_path / "demo/run/report.html").stat().st_size > 10_000
