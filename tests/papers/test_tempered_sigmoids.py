"""Tables 3 and 4 of the tempered sigmoids' paper, the spread between classes, and the search before them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job, Training, key_of
from lehr.papers.table import Measured
from lehr.papers.tempered_sigmoids import EXPERIMENTS, RATES, SPREAD, TABLE3, TABLE4
from lehr.papers.tempered_sigmoids_runs import CHOSEN, MNIST, RELU, SEARCH_SEED, TANH, grid_of, private

QUICK = Size(is_quick=True)


def outcome(accuracy: float, **other: Any) -> dict[str, Any]:
    return {"accuracy": accuracy, "epsilon_published": 2.9306, "epsilon_proven": 2.317, **other}


def outcomes_of(pairs: Iterable[tuple[Job, dict[str, Any]]]) -> Outcomes:
    return Outcomes({key_of(job): found for job, found in pairs})


def test_all_tables_and_figures_are_there() -> None:
    figures = [f"figure{number}" for number in range(1, 6)]
    assert [each.name for each in EXPERIMENTS] == ["table3", "table4", *figures, "spread", "rates"]
    assert {each.paper for each in EXPERIMENTS} == {"tempered-sigmoids"}


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
def test_jobs_are_different_and_a_quick_one_has_few_and_short_ones(experiment: Experiment) -> None:
    jobs, quick = experiment.jobs(Size()), experiment.jobs(QUICK)
    assert len({key_of(job) for job in jobs}) == len(jobs)
    assert len(quick) <= 10
    assert all(job.data == "digits" and job.steps <= 120 for job in quick if isinstance(job, Training))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda each: each.name)
def test_without_outcomes_no_number_of_ours_is_shown(experiment: Experiment) -> None:
    shown = experiment.shown(Outcomes({}), QUICK)
    for table in shown.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(cell.mean is None for row in table.rows for cell in row if isinstance(cell, Measured))
        ours = [place for place, column in enumerate(table.columns) if column.kind == "percent"]
        assert all(_is_empty(row[place]) for row in table.rows for place in ours)


def _is_empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, Measured) and not cell.values)


def test_table_3_has_five_runs_a_row_on_the_small_data_sets_and_three_on_the_large() -> None:
    jobs = [job for job in TABLE3.jobs(Size()) if isinstance(job, Training)]
    counts = {data: sum(job.data == data for job in jobs) for data in ("mnist", "fashion-mnist", "cifar-10")}
    assert counts == {"mnist": 20, "fashion-mnist": 20, "cifar-10": 12}
    assert all(job.seed != SEARCH_SEED for job in jobs)


def test_table_3_has_the_means_beside_the_papers_numbers() -> None:
    jobs = TABLE3.jobs(Size(seeds=2))
    relu = [job for job in jobs if job in [private(MNIST, RELU, seed) for seed in range(2)]]
    [table] = TABLE3.shown(outcomes_of(zip(relu, [outcome(0.96), outcome(0.97)], strict=True)), Size(seeds=2)).tables
    printed = {(row[0], row[1]): row[2] for row in table.rows}
    assert printed["MNIST", "ReLU"] == 0.966
    assert printed["FashionMNIST", "tanh"] == 0.861
    assert printed["CIFAR-10", "ReLU, not private"] == 0.766
    [row] = [row for row in table.rows if row[:2] == ("MNIST", "ReLU")]
    assert row[3] == Measured((0.96, 0.97))
    assert row[4:6] == (2.9306, 2.317)
    others = [row for row in table.rows if row[:2] != ("MNIST", "ReLU")]
    assert all(_is_empty(row[3]) for row in others)
    assert all(row[5] == ("∞" if "not private" in str(row[1]) else None) for row in others)


def test_the_search_marks_the_best_and_what_table_3_has() -> None:
    grid = grid_of(MNIST)
    runs = [private(MNIST, TANH, SEARCH_SEED, step=step) for step in grid]
    found = outcomes_of((run, outcome(0.9 + 0.01 * place)) for place, run in enumerate(runs))
    table, *others = RATES.shown(found, Size()).tables
    rows = [row for row in table.rows if row[0] == "tanh"]
    assert [row[4] for row in rows] == pytest.approx([0.9, 0.91, 0.92, 0.93, 0.94])
    assert [row[-1] for row in rows].index("best" if grid[-1] != CHOSEN["mnist"][TANH] else "best, of Table 3") == 4
    assert sum("of Table 3" in str(row[-1]) for row in rows) == 1
    assert all("best" not in str(row[-1]) for other in others for row in other.rows)


def test_table_4_has_the_papers_rates_with_and_without_privacy() -> None:
    jobs = [job for job in TABLE4.jobs(Size(seeds=1)) if isinstance(job, Training)]
    assert {job.data for job in jobs} == {"fashion-mnist"}
    rates = [
        job.settings["update"]["learning_rate"] if "update" in job.settings else job.settings["learning_rate"]
        for job in jobs
    ]
    assert rates[:4] == [0.107, 1.06e-3, 0.332, 1.32e-3]
    assert [job.noise_multiplier is None for job in jobs] == [True, True, False, False, False]
    found = outcomes_of((job, outcome(0.8 + 0.01 * place)) for place, job in enumerate(jobs))
    [table] = TABLE4.shown(found, Size(seeds=1)).tables
    assert [row[:4] for row in table.rows[:4]] == [
        ("SGD", "no", 0.107, 0.903),
        ("Adam", "no", 1.06e-3, 0.905),
        ("SGD", "yes", 0.332, 0.861),
        ("Adam", "yes", 1.32e-3, 0.860),
    ]
    assert [row[4] for row in table.rows] == [Measured((0.8 + 0.01 * place,)) for place in range(5)]
    assert [row[6] for row in table.rows] == ["∞", "∞", 2.317, 2.317, 2.317]


def test_the_spread_is_the_deviation_between_classes_as_a_mean_over_runs() -> None:
    jobs = [private(MNIST, TANH, seed) for seed in range(2)]
    classes = ([0.9, 1.0], [0.7, 1.0])
    found = outcomes_of((job, outcome(0.9, per_class=shares)) for job, shares in zip(jobs, classes, strict=True))
    [table] = SPREAD.shown(found, Size(seeds=2)).tables
    [row] = [row for row in table.rows if row[:2] == ("MNIST", "tanh")]
    assert row[2] == 0.16
    assert isinstance(row[3], Measured)
    assert math.isclose(row[3].mean or 0, (0.05 + 0.15) / 2)
    assert row[4] == Measured((0.9, 0.7))


def test_the_spread_needs_no_runs_beside_those_of_table_3() -> None:
    both = [{key_of(job) for job in experiment.jobs(Size())} for experiment in (SPREAD, TABLE3)]
    assert both[0] < both[1]
