"""The examples that draw pictures draw them, and the pages have their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.examples.loading import ROOT, example, run_main

cosine_demo = example("cosine_demo")
CASES = [(name, *way) for name, way in cosine_demo.WAYS.items()]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name, stds, printed", CASES, ids=[name for name, *_ in CASES])
def test_the_exact_mean_cosine_is_that_of_many_draws_and_not_the_printed_one(
    name: str, stds: tuple[float, float], printed: float
) -> None:
    noise_std = np.array(stds)
    exact = cosine_demo.exact_mean_cosine(cosine_demo.ANSWER, noise_std)
    mean, error = cosine_demo.simulated_mean_cosine(cosine_demo.ANSWER, noise_std, num_draws=400_000)
    assert abs(exact - mean) < 4 * error < 0.005
    assert abs(exact - printed) > 0.04
    assert 0.98 < ((cosine_demo.SENSITIVITIES / noise_std) ** 2).sum() <= 1  # all three cost the same


def test_the_mean_cosine_is_one_without_noise_and_zero_with_much_noise() -> None:
    assert cosine_demo.exact_mean_cosine(cosine_demo.ANSWER, np.array([0.5, 0.5])) > 0.998
    assert abs(cosine_demo.exact_mean_cosine(cosine_demo.ANSWER, np.array([1e6, 1e6]))) < 1e-4


def test_the_cosine_demo_prints_the_numbers_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(cosine_demo, monkeypatch, "--out", str(tmp_path))
    printed = capsys.readouterr().out
    for number in ("0.4704", "0.4780", "0.3992", "0.474 ± 0.007", "0.481 ± 0.006", "0.401 ± 0.005"):
        assert number in printed
        assert number in page("docs/results.md")
    assert 5_000 < (tmp_path / "cosine.svg").stat().st_size < 100_000


def test_trajectories_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    beale, regression = example("beale_trajectories"), example("linear_regression_trajectories")
    assert f"{len(beale.GRID)} settings" in page("docs/results.md")
    monkeypatch.setattr(beale, "GRID", beale.GRID[:2])
    run_main(beale, monkeypatch, "--out", str(tmp_path), "--seeds", "3")
    run_main(regression, monkeypatch, "--out", str(tmp_path), "--seeds", "1")
    printed = capsys.readouterr().out
    assert "of 2 settings" in printed
    assert "SA-DPSGD, as many accepted" in printed
    for name in ("beale", "trajectories"):
        assert 5_000 < (tmp_path / f"{name}.svg").stat().st_size < 100_000


def test_pictures_of_tan_are_drawn_from_the_kept_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tan_pictures = example("tan_pictures")
    run_main(tan_pictures, monkeypatch, "--out", str(tmp_path))
    for name in ("law", "order", "vit"):
        assert f"pictures/tan_{name}.svg" in page("docs/tan.md")
        assert "test accuracy, %" in (tmp_path / f"tan_{name}.svg").read_text()
        assert "test accuracy, %" in page(f"docs/pictures/tan_{name}.svg")
        assert (ROOT / f"docs/pictures/tan_{name}.svg").stat().st_size < 60_000
    # The line of the law is drawn only where there are enough batches.
    assert len(tan_pictures.draw_law(tan_pictures.kept("figure4")).axes[0].containers) == 1


def test_the_readme_has_its_pictures_and_the_ratios_of_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures, readme = example("readme_pictures"), page("README.md")
    run_main(pictures, monkeypatch, "--out", str(tmp_path))
    for name in ("speed.svg", "accuracy.svg"):
        assert 5_000 < (tmp_path / name).stat().st_size < 100_000
        assert f"docs/pictures/{name}" in readme
    lehr, opacus = zip(*pictures.times(json.loads(page(str(pictures.MEASURED)))).values(), strict=True)
    assert f" {min(lehr):.2f} to {max(lehr):.2f} " in readme
    assert f" {min(opacus):.1f} to {max(opacus):.1f} " in readme


def test_tempered_sigmoids_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_main(example("tempered_sigmoids"), monkeypatch, "--picture", str(tmp_path / "family.svg"))
    drawn, kept = (tmp_path / "family.svg").read_text(), page("docs/pictures/tempered_sigmoids.svg")
    for words in ("(2, 2, 1): tanh", "(1.58, 3, 0.71): cifar-10", "a step, as T → ∞"):
        assert words in drawn
        assert words in kept
    assert len(drawn) < 100_000


@pytest.mark.whole
def test_gradient_norms_are_drawn_for_every_run(
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
    assert [path.name for path in tmp_path.iterdir()] == ["norms.svg"]
