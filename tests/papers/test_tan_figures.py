from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lehr.papers import tan_figures
from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job, Training, key_of
from lehr.papers.store import Kept, outcomes_in
from lehr.papers.table import Measured

WHOLE, QUICK, NOTHING = Size(), Size(is_quick=True), Outcomes({})
KEPT = Path(__file__).parents[2] / "results/papers"
TRAINED = (tan_figures.FIGURE1, tan_figures.FIGURE4, tan_figures.FIGURE5, tan_figures.FIGURE6, tan_figures.RATES)


def made_up(jobs: Iterable[Job]) -> Outcomes:
    """An outcome for each training: its accuracy follows from its views and its seed."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        assert isinstance(job, Training)
        accuracy = 0.5 + 0.01 * job.views + 0.002 * job.seed
        rows = [[300, 300, accuracy / 2, None], [600, 600, accuracy, None]]
        found[key_of(job)] = {"accuracy": accuracy, "trajectory": rows, "parameters": 7, "epsilon_proven": 2.0}
    return Outcomes(found)


@pytest.mark.parametrize("experiment", TRAINED, ids=lambda each: each.name)
def test_where_nothing_was_run_no_accuracy_of_ours_is_shown(experiment: Experiment) -> None:
    shown = experiment.shown(NOTHING, WHOLE)
    cells = [cell for table in shown.tables for row in table.rows for cell in row]
    assert all(not cell.values for cell in cells if isinstance(cell, Measured))
    assert shown.charts == ()


@pytest.mark.parametrize("experiment", tan_figures.FIGURES, ids=lambda each: each.name)
@pytest.mark.parametrize("size", [WHOLE, QUICK], ids=["whole", "quick"])
def test_rows_have_a_cell_for_each_column(experiment: Experiment, size: Size) -> None:
    for table in experiment.shown(NOTHING, size).tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}


@pytest.mark.parametrize("experiment", TRAINED, ids=lambda each: each.name)
def test_quick_jobs_are_other_jobs_and_titles_say_quick(experiment: Experiment) -> None:
    whole, quick = ({key_of(job) for job in experiment.jobs(size)} for size in (WHOLE, QUICK))
    assert not whole & quick
    assert any(table.title.startswith("Quick") for table in experiment.shown(NOTHING, QUICK).tables)


def test_figure_1_asks_for_the_reference_with_and_without_views() -> None:
    whole = [job for job in tan_figures.FIGURE1.jobs(WHOLE) if isinstance(job, Training)]
    assert {job.views for job in whole if job.simulated_batch_size is None} == {1, 4}


def test_figure_2_shows_the_wall_of_the_kept_lines() -> None:
    shown = tan_figures.FIGURE2.shown(outcomes_in(Kept.read(KEPT / "tan_figure2.json")), WHOLE)
    low, high = shown.tables
    assert [row[0] for row in low.rows] == [0.5, 1.0, 2.0, 4.0, 8.0]
    for table, limit in ((low, 0.78), (high, 6.98)):
        longest = [row[-1] for row in table.rows if isinstance(row[-1], float)]
        assert len(longest) == 5
        assert longest == sorted(longest, reverse=True)
        assert longest[0] > 4 * longest[-1]
        assert longest[-1] == pytest.approx(limit, abs=0.02)
    assert [len(chart.lines) for chart in shown.charts] == [8, 8]


def test_figure_2_without_its_lines_is_empty() -> None:
    shown = tan_figures.FIGURE2.shown(NOTHING, WHOLE)
    assert all(cell is None for table in shown.tables for row in table.rows for cell in row[1:])
    assert shown.charts == ()


def test_figure_3_needs_no_run() -> None:
    assert tan_figures.FIGURE3.jobs(WHOLE) == []
    shown = tan_figures.FIGURE3.shown(NOTHING, WHOLE)
    whole, near = shown.charts
    assert len(whole.lines) == 5
    assert max(value for line in near.lines for value in line.y) < 2


def test_figure_5_means_are_over_seeds() -> None:
    shown = tan_figures.FIGURE5.shown(made_up(tan_figures.FIGURE5.jobs(WHOLE)), WHOLE)
    [one, four, _] = shown.tables[0].rows
    assert isinstance(one[1], Measured)
    assert one[1].mean == pytest.approx(0.512)
    assert one[1].spread == pytest.approx(0.002)
    assert isinstance(four[2], Measured)
    assert four[2].values == pytest.approx((0.54, 0.542, 0.544))
    assert len(shown.charts[0].lines[0].x) == 9


def test_figure_6_draws_the_mean_over_the_runs_on_the_way() -> None:
    shown = tan_figures.FIGURE6.shown(made_up(tan_figures.FIGURE6.jobs(WHOLE)), WHOLE)
    line = shown.charts[0].lines[0]
    assert line.x == [300.0, 600.0]
    assert line.y == pytest.approx([25.6, 51.2])
    assert [row[1] for row in shown.tables[0].rows] == [7] * 4


def test_figure_7_shows_what_was_looked_at() -> None:
    jobs = tan_figures.FIGURE7.jobs(WHOLE)
    look = {"step": 50, "median": 0.4, "share_below_a_tenth": 0.1, "share_clipped": 0.2, "shares": [1 / 30] * 30}
    shown = tan_figures.FIGURE7.shown(Outcomes({key_of(jobs[0]): {"looks": [look]}}), WHOLE)
    rows = {(row[0], row[1]): row[2:] for row in shown.tables[0].rows}
    assert rows["none", 50] == (0.4, 0.1, 0.2)
    assert rows["none", 0] == rows["8 of simclr", 50] == (None, None, None)
    assert len(shown.charts) == 1


@pytest.mark.parametrize(
    "experiment, name, count",
    [
        (tan_figures.FIGURE4, "figure4", 23),
        (tan_figures.FIGURE5, "figure5", 18),
        (tan_figures.FIGURE6, "figure6", 7),
        (tan_figures.RATES, "rates", 8),
        (tan_figures.FIGURE2, "figure2", 8),
    ],
)
def test_kept_runs_are_found_by_the_jobs_of_their_experiment(experiment: Experiment, name: str, count: int) -> None:
    outcomes = outcomes_in(Kept.read(KEPT / f"tan_{name}.json"))
    assert len(outcomes.by_key) == count
    assert len(outcomes.of_all(experiment.jobs(WHOLE))) == count


def test_the_kept_accuracies_are_those_that_were_measured() -> None:
    order = tan_figures.FIGURE5.shown(outcomes_in(Kept.read(KEPT / "tan_figure5.json")), WHOLE).tables[0].rows
    means = [round(100 * cell.mean, 1) for row in order for cell in row if isinstance(cell, Measured) and cell.mean]
    assert means == [61.5, 49.2, 63.0, 49.1, 63.4, 49.1]
    rates = tan_figures.RATES.shown(outcomes_in(Kept.read(KEPT / "tan_rates.json")), WHOLE).tables[0].rows
    assert [row[3] for row in rates] == [0.6097, 0.6352, 0.5908, 0.4230, 0.4786, 0.5125, 0.5049, None, 0.4318]
