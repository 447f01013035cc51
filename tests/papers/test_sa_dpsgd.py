"""SA-DPSGD's tables: what is made of outcomes, of all of them, of some and of none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job, Measurement, Training, key_of
from lehr.papers.sa_dpsgd import EXPERIMENTS, accuracy_at, first_reached
from lehr.papers.sa_dpsgd_costs import proven_epsilon, published_epsilon
from lehr.papers.sa_dpsgd_runs import HALF, KEPT, MNIST, RELU, TANH, proven_run, runs_of
from lehr.papers.table import Cell, Measured, Table

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}
TABLE1, TABLE3, FIGURE1 = BY_NAME["table1"], BY_NAME["table3"], BY_NAME["figure1"]
FULL, QUICK = Size(), Size(is_quick=True)
NOTHING = Outcomes({})

Row = list[float]


def outcome(*rows: Row, **said: Any) -> dict[str, Any]:
    """A run with such a trajectory: candidates, accepted, accuracy, loss."""
    candidates, accepted, accuracy, loss = rows[-1]
    told = {"candidates": candidates, "accepted": accepted, "accuracy": accuracy, "loss": loss}
    return {**told, "trajectory": [*rows], "epsilon_of_candidates_drawn": 2.9, **said}


def outcomes_of(jobs: list[Training], make: Callable[[Training], dict[str, Any]]) -> Outcomes:
    return Outcomes({key_of(job): make(job) for job in jobs})


def row_of(table: Table, *starts: Cell) -> tuple[Cell, ...]:
    [found] = [row for row in table.rows if row[: len(starts)] == starts]
    return found


def cell(table: Table, row: tuple[Cell, ...], title: str) -> Cell:
    return row[[column.title for column in table.columns].index(title)]


def test_the_tables_and_figures_of_the_paper_are_there_and_what_is_ours() -> None:
    names = ["table1", "table3", "figure1", "figure3", "figure4", "acceptance", "acceptance-search", "cifar-10-rates"]
    assert [experiment.name for experiment in EXPERIMENTS] == names
    assert {experiment.paper for experiment in EXPERIMENTS} == {"sa-dpsgd"}


@pytest.mark.parametrize("size", [FULL, QUICK], ids=["full", "quick"])
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_job_is_another_and_tables_are_whole_without_any_outcome(experiment: Experiment, size: Size) -> None:
    jobs = experiment.jobs(size)
    assert len({key_of(job) for job in jobs}) == len(jobs) > 0
    shown = experiment.shown(NOTHING, size)
    assert not shown.charts
    assert shown.tables
    for table in shown.tables:
        assert {len(row) for row in table.rows} <= {len(table.columns)}
        assert all(found.mean is None for row in table.rows for found in row if isinstance(found, Measured))
        assert table.title.startswith("Quick") is size.is_quick


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_quick_jobs_are_small_and_no_job_of_the_whole(experiment: Experiment) -> None:
    quick = experiment.jobs(QUICK)
    assert not {key_of(job) for job in quick} & {key_of(job) for job in experiment.jobs(FULL)}
    assert all(job.data == "digits" and job.steps <= 500 for job in quick if isinstance(job, Training))


def test_table_1_trains_what_its_paper_prints_first() -> None:
    jobs = [job for job in TABLE1.jobs(FULL) if isinstance(job, Training)]
    assert jobs[:4] == [runs_of(MNIST, scheme, FULL)[0] for scheme in (RELU, TANH)] + jobs[2:4]
    assert [job.method for job in jobs[:4]] == ["dpsgd", "dpsgd", "auto-s", "sa-dpsgd"]
    batches = [job.expected_batch_size for job in jobs if job.scored_on == "seen"]
    assert batches.count(256) == 5


def test_table_1_reads_the_accuracy_at_a_published_3_off_a_longer_run() -> None:
    runs = runs_of(MNIST, TANH, FULL)
    found = outcomes_of(
        runs, lambda job: outcome([4698, 4698, 0.97 + 0.001 * job.seed, 0.1], [17_658, 17_658, 0.99, 0.1])
    )
    table = TABLE1.shown(found, FULL).tables[0]
    row = row_of(table, TANH.title)
    ours = cell(table, row, "ours")
    assert isinstance(ours, Measured)
    assert ours.mean == pytest.approx(0.972)
    assert len(ours.values) == 5
    assert cell(table, row, "paper") == 0.9805
    assert cell(table, row, "published ε") == pytest.approx(2.9998, abs=1e-4)
    assert cell(table, row, "proven ε") == pytest.approx(2.366, abs=1e-3)


def test_table_1_says_what_an_annealed_run_drew_and_what_it_might_have_drawn() -> None:
    runs = runs_of(MNIST, KEPT, FULL)[:2]
    found = outcomes_of(runs, lambda job: outcome([6000 + 1000 * job.seed, 4698, 0.983, 0.06]))
    table = TABLE1.shown(found, FULL).tables[0]
    row = row_of(table, KEPT.title)
    assert cell(table, row, "ours") == Measured((0.983, 0.983))
    assert cell(table, row, "candidates drawn") == Measured((6000, 7000))
    assert cell(table, row, "proven ε") == pytest.approx(9.315, abs=1e-3)
    assert cell(table, row_of(table, HALF.title), "ours") == Measured(())


def test_table_1_has_runs_at_a_proven_3_that_are_those_of_acceptance() -> None:
    shared = {key_of(job) for job in BY_NAME["acceptance"].jobs(FULL)}
    assert key_of(proven_run(MNIST, "sa-dpsgd", 0)) in shared
    assert key_of(proven_run(MNIST, "dpsgd", 4)) in shared
    found = outcomes_of([proven_run(MNIST, "dpsgd", 0)], lambda job: outcome([7245, 7245, 0.98, 0.1]))
    table = TABLE1.shown(found, FULL).tables[0]
    assert cell(table, row_of(table, "DPSGD, tanh, at a proven ε of 3"), "ours") == Measured((0.98,))


def test_free_settings_that_are_not_printed_are_not_run() -> None:
    mnist, *others = TABLE1.shown(NOTHING, FULL).tables
    free = "SA-DPSGD, free settings"
    assert [row[:2] for row in mnist.rows if str(row[0]).startswith(free)] == [
        (f"{free}: batch 256", 0.9889),
        (f"{free}: rate 1.5", 0.9881),
        (f"{free}: rate 1.5, momentum taken back", None),
    ]
    assert [row_of(table, free)[1:3] for table in others] == [(0.8850, None), (0.6417, None)]
    assert all("does not print" in str(row_of(table, free)[-1]) for table in others)


def test_an_accuracy_is_only_read_where_it_was_looked_at() -> None:
    found = outcome([81, 80, 0.5, 1.0], [162, 160, 0.6, 0.9], [170, 165, 0.7, 0.8])
    assert accuracy_at(found, 160) == 0.6
    assert accuracy_at(found, 165) == 0.7
    assert accuracy_at(found, 161) is None


def test_the_first_time_counts_even_if_the_accuracy_falls_again() -> None:
    found = outcome([81, 80, 0.5, 1.0], [162, 150, 0.95, 0.9], [243, 200, 0.9, 0.8])
    assert first_reached(found, 0.94) == (162, 150)
    assert first_reached(found, 0.96) is None


def test_table_3_has_the_mean_cost_where_every_run_reaches_the_accuracy() -> None:
    runs = runs_of(MNIST, TANH, FULL)[:2]
    found = outcomes_of(
        runs, lambda job: outcome([81, 81, 0.9, 1], [162 + 81 * job.seed, 162 + 81 * job.seed, 0.95, 1])
    )
    table = TABLE3.shown(found, FULL).tables[0]
    row = row_of(table, 0.94, TANH.title)
    assert cell(table, row, "paper, published ε") == 1.23
    assert cell(table, row, "ours, published ε") == Measured(tuple(published_epsilon(MNIST, n) for n in (162, 243)))
    proven = cell(table, row, "ours, proven ε")
    assert isinstance(proven, Measured)
    assert proven.values == pytest.approx([proven_epsilon(MNIST, n) for n in (162, 243)], rel=5e-3)
    assert cell(table, row, "runs that reached it") == "2 of 2"


def test_table_3_charges_an_annealed_run_for_what_it_drew_and_says_so() -> None:
    found = outcomes_of(runs_of(MNIST, KEPT, FULL)[:1], lambda job: outcome([405, 100, 0.95, 1]))
    table = TABLE3.shown(found, FULL).tables[0]
    row = row_of(table, 0.94, KEPT.title)
    assert cell(table, row, "ours, published ε") == Measured((published_epsilon(MNIST, 100),))
    proven = cell(table, row, "ours, proven ε")
    assert isinstance(proven, Measured)
    assert proven.values == pytest.approx([proven_epsilon(MNIST, 405)], rel=5e-3)
    assert "no guarantee" in str(row[-1])


def test_table_3_has_no_cost_where_a_run_never_reaches_the_accuracy_and_says_how_many_did() -> None:
    runs = runs_of(MNIST, RELU, FULL)
    found = outcomes_of(runs, lambda job: outcome([81, 81, 0.99 if job.seed < 2 else 0.9, 1]))
    table = TABLE3.shown(found, FULL).tables[0]
    row = row_of(table, 0.98, RELU.title)
    assert cell(table, row, "paper, published ε") == "not within 6"
    assert cell(table, row, "ours, published ε") is None
    assert cell(table, row, "ours, proven ε") is None
    assert cell(table, row, "runs that reached it") == "2 of 5"


def test_figure_1_is_a_measurement_of_this_package_and_drawn_from_its_outcome() -> None:
    [job] = FIGURE1.jobs(FULL)
    assert job == Measurement(function="linear_regression:trajectories", arguments={"seeds": 20})
    ends = [{"excess": 0.1 * place, "candidates": 60 + place, "epsilon": 0.3 + 0.01 * place} for place in range(11)]
    told = {
        "paths": {"SGD": [[-1, 1.5], [2, -1]]},
        "ends": {"SGD, not private": [{"excess": 0.0, "candidates": 60}], "DPSGD": ends},
        "true": [2, -1],
    }
    shown = FIGURE1.shown(Outcomes({key_of(job): told}), FULL)
    plain, dpsgd = shown.tables[0].rows
    assert plain == ("SGD, not private", 0.0, None, None, 60, None)
    assert dpsgd[0] == "DPSGD"
    assert dpsgd[1:] == pytest.approx((0.5, 0.1, 0.9, 65, 0.35))
    assert [line.name for line in shown.charts[0].lines] == ["SGD", "true weights"]


def test_tables_1_and_3_and_figure_3_share_their_runs() -> None:
    def keys(jobs: list[Job]) -> set[str]:
        return {key_of(job) for job in jobs}

    assert keys(TABLE3.jobs(FULL)) == keys(BY_NAME["figure3"].jobs(FULL)) < keys(TABLE1.jobs(FULL))
