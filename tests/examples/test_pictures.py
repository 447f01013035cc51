"""The examples that draw pictures draw them, and the pages have their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.examples.loading import ROOT, example, run_main


def test_trajectories_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    beale, regression = example("beale_trajectories"), example("linear_regression_trajectories")
    assert f"{len(beale.GRID)} settings" in (ROOT / "docs/results.md").read_text()
    monkeypatch.setattr(beale, "GRID", beale.GRID[:2])
    run_main(beale, monkeypatch, "--out", str(tmp_path), "--seeds", "3")
    run_main(regression, monkeypatch, "--out", str(tmp_path), "--seeds", "1")
    printed = capsys.readouterr().out
    assert "of 2 settings" in printed
    assert "SA-DPSGD, as many accepted" in printed
    for name in ("beale", "trajectories"):
        assert 5_000 < (tmp_path / f"{name}.svg").stat().st_size < 100_000


def test_tans_pictures_are_drawn_from_the_kept_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tan_pictures = example("tan_pictures")
    run_main(tan_pictures, monkeypatch, "--out", str(tmp_path))
    for name in ("law", "order", "vit"):
        assert f"pictures/tan_{name}.svg" in (ROOT / "docs/tan.md").read_text(encoding="utf-8")
        drawn, kept = tmp_path / f"tan_{name}.svg", ROOT / f"docs/pictures/tan_{name}.svg"
        assert "test accuracy, %" in drawn.read_text()
        assert "test accuracy, %" in kept.read_text()
        assert kept.stat().st_size < 60_000
    # The line of the law is drawn only where there are enough batches.
    assert len(tan_pictures.draw_law(tan_pictures.kept("figure4")).axes[0].containers) == 1


def test_the_readme_has_the_picture_and_the_measured_ratios_of_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed_picture, readme = example("speed_picture"), (ROOT / "README.md").read_text(encoding="utf-8")
    run_main(speed_picture, monkeypatch, "--out", str(tmp_path))
    assert 5_000 < (tmp_path / "speed.svg").stat().st_size < 60_000
    assert "docs/pictures/speed.svg" in readme
    ratios = speed_picture.times(json.loads(speed_picture.MEASURED.read_text(encoding="utf-8"))).values()
    lehr, opacus = zip(*ratios, strict=True)
    assert f"Lehr {min(lehr):.2f} to {max(lehr):.2f}" in readme
    assert f"fastest mode {min(opacus):.1f} to {max(opacus):.1f}" in readme


def test_the_family_of_tempered_sigmoids_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_main(example("tempered_sigmoids"), monkeypatch, "--picture", str(tmp_path / "family.svg"))
    drawn, kept = (path.read_text() for path in (tmp_path / "family.svg", ROOT / "docs/pictures/tempered_sigmoids.svg"))
    for words in ("(2, 2, 1): tanh", "(1.58, 3, 0.71): cifar-10", "a step, as T → ∞"):
        assert words in drawn
        assert words in kept
    assert len(drawn) < 100_000


@pytest.mark.whole
def test_gradient_norms_are_drawn_and_printed_for_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_main(example("gradient_norms"), monkeypatch, "--steps", "3", "--picture", "norms.svg")
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    activations = ("relu", "tanh", "tempered_sigmoid(mnist)")
    assert [(row[0], row[1]) for row in rows] == [(name, method) for method in ("SGD", "DPSGD") for name in activations]
    assert [row[2] for row in rows[:3]] == [row[2] for row in rows[3:]]  # both begin at the same weights
    assert {row[-1] for row in rows[:3]} == {"infinity"}
    assert all(0 < float(row[-1]) < 10 for row in rows[3:])
    assert (tmp_path / "norms.svg").stat().st_size < 100_000
    assert [path.name for path in tmp_path.iterdir()] == ["norms.svg"]
