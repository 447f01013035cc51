from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr.papers import adadp_curves as curves
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Job, Training, key_of
from lehr.papers.table import Measured, Table

ROOT = Path(__file__).parents[2]


def run_with(*rows: tuple[int, float]) -> dict[str, Any]:
    """An outcome whose accuracies are these, after so many steps."""
    return {"trajectory": [[steps, steps, value, 1.0] for steps, value in rows], "accuracy": rows[-1][1]}


def outcomes(*found: tuple[Job, dict[str, Any]]) -> Outcomes:
    return Outcomes({key_of(job): outcome for job, outcome in found})


def row_of(table: Table, name: str) -> tuple[Any, ...]:
    [row] = [row for row in table.rows if row[0] == name]
    return row


def end_of(method: str, *, noise: float, seed: int = 0, settings: dict[str, Any] | None = None) -> Training:
    """The run that is scored at its end."""
    [job] = [
        job
        for job in curves.FIGURE2.jobs(Size())
        if isinstance(job, Training)
        and (job.method, job.noise_multiplier, job.seed, job.evaluate_every) == (method, noise, seed, None)
        and (settings is None or job.settings == settings)
    ]
    return job


def test_figure_2_has_the_words_of_the_runs_that_were_measured_before() -> None:
    words = end_of("adadp", noise=8.0, settings={"accounting": "published", "learning_rate": 0.005}).to_json()
    assert words == {
        "kind": "training",
        "data": "mnist",
        "network": ["projected_mlp", {}],
        "method": "adadp",
        "seed": 0,
        "settings": {"accounting": "published", "learning_rate": 0.005},
        "expected_batch_size": 600,
        "noise_multiplier": 8,
        "steps": 1000,
        "is_plain": True,
        "private_pca": {"dimensions": 60, "noise_multiplier": 16},
    }
    falling = {"kind": "linear-decay", "steps": 1000, "first": 1, "last": 0.52}
    assert end_of("dpopt", noise=2.0).to_json()["settings"] == {"schedule": falling}
    clipped = {"learning_rate": 0.1, "clip_norm": 4, "momentum": 0}
    assert end_of("dpsgd", noise=4.0).to_json()["settings"] == {**clipped, "schedule": falling}
    assert end_of("adan", noise=4.0).to_json().get("settings") is None


def test_figure_2_has_nine_ways_at_three_noise_levels_over_five_seeds() -> None:
    jobs = [job for job in curves.FIGURE2.jobs(Size()) if isinstance(job, Training)]
    ends = [job for job in jobs if job.evaluate_every is None]
    assert len(ends) == 9 * 3 * 5
    pairs = {(job.noise_multiplier, (job.private_pca or {})["noise_multiplier"]) for job in jobs}
    assert pairs == {(8.0, 16.0), (4.0, 7.0), (2.0, 4.0)}


def test_accuracies_stand_in_the_column_of_their_noise() -> None:
    found = outcomes(*((end_of("dpsgd", noise=4.0, seed=seed), run_with((1000, 0.9 + seed / 100))) for seed in (0, 1)))
    ends, _ = curves.FIGURE2.shown(found, Size()).tables
    assert row_of(ends, "DPSGD")[1:4] == (Measured(()), Measured((0.9, 0.91)), Measured(()))


def test_a_gain_is_over_pairs_of_one_seed() -> None:
    proven = {seed: end_of("adadp", noise=2.0, seed=seed, settings={}) for seed in (0, 1)}
    found = outcomes(
        (proven[0], run_with((1000, 0.95))),
        (proven[1], run_with((1000, 0.99))),
        (end_of("dpsgd", noise=2.0, seed=0), run_with((1000, 0.90))),
    )
    _, gains = curves.FIGURE2.shown(found, Size()).tables
    [gain] = row_of(gains, "ADADP, proven, above DPSGD")[3].values
    assert gain == pytest.approx(0.05)
    assert row_of(gains, "in the paper, above DPSGD")[1:] == (0.059, 0.027, 0.010)


def test_a_line_goes_over_passes_and_its_end_stands_in_where_no_other_run_is_there() -> None:
    [line] = [
        job
        for job in curves.FIGURE2.jobs(Size())
        if isinstance(job, Training) and (job.method, job.noise_multiplier, job.evaluate_every) == ("dpsgd", 8.0, 50)
    ]
    shown = curves.FIGURE2.shown(outcomes((line, run_with((500, 0.8), (1000, 0.9)))), Size())
    [chart] = shown.charts
    [drawn] = chart.lines
    assert (drawn.name, list(drawn.x), list(drawn.y)) == ("DPSGD", [5.0, 10.0], [0.8, 0.9])
    assert row_of(shown.tables[0], "DPSGD")[1] == Measured((0.9,))


def test_figure_3_and_4b_share_the_runs_of_adadp() -> None:
    third, fourth = ({key_of(job) for job in each.jobs(Size())} for each in (curves.FIGURE3, curves.FIGURE4B))
    assert len(third & fourth) == 2 * 3


@pytest.mark.parametrize("name, rate", [("ADAL", 0.001), ("ADAN", 0.05)])
def test_parts_have_the_papers_rates_on_cifar_10(name: str, rate: float) -> None:
    [way] = [way for way in curves.ways_on_cifar(10) if way.name == name]
    assert way.settings["learning_rate"] == rate


def test_figure_3_has_the_papers_gains_in_points() -> None:
    printed = curves.FIGURE3.shown(Outcomes({}), Size()).tables[1]
    assert row_of(printed, "DPOPT")[1:] == (0.021, 0.035, 0.032)


def test_runs_that_are_kept_are_found_by_the_jobs_of_figure_2() -> None:
    kept = json.loads((ROOT / "results/papers/adadp_figure2.json").read_text(encoding="utf-8"))["entries"]
    assert kept
    assert set(kept) <= {key_of(job) for job in curves.FIGURE2.jobs(Size())}
    ends, gains = curves.FIGURE2.shown(Outcomes({key: entry["result"] for key, entry in kept.items()}), Size()).tables
    assert all(cell.values for row in ends.rows for cell in row if isinstance(cell, Measured))
    # As it was first measured: proven, at our rate and the least noise, above DPSGD.
    assert row_of(gains, "ADADP, proven, rate 0.005, above DPSGD")[3].mean == pytest.approx(0.0139, abs=1e-4)
