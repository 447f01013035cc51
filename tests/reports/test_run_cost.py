from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lehr.reports import run_cost
from lehr.reports.run_reading import RunRecord, read_run
from tests.written_runs import configuration, evaluations, write_run


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    directory = tmp_path_factory.mktemp("runs") / "run"
    write_run(directory)
    return read_run(directory)


def test_records_are_the_expected_ones_since_those_drawn_are_private(record: RunRecord) -> None:
    rows = run_cost.rows(record)
    assert rows["Records looked at"] == "640 expected (40 steps of 16)"
    assert rows["Passes over the records"] == "0.64 expected"


def test_time_is_told_to_the_minute(record: RunRecord) -> None:
    assert run_cost.rows(record)["Time"].startswith("less than a minute, ")
    rows = run_cost.rows(replace(record, minutes=95))
    assert rows["Time"].startswith("1 h 35 min, ")
    assert rows["Steps per minute"] == "0.4211 on average"
    assert "Time" not in run_cost.rows(replace(record, minutes=None))


def test_epsilon_is_set_against_steps_passes_and_accuracy(record: RunRecord) -> None:
    rows = run_cost.rows(record)
    assert rows["ε per 100 steps"] == "1 on average"  # 0.4 for forty
    assert rows["ε per pass over the records"] == "0.625 on average"
    assert rows["ε when 90% was first reached"] == "0.2"
    assert "ε when 97% was first reached" not in rows


def test_only_the_highest_accuracies_are_told(record: RunRecord) -> None:
    best = replace(record, evaluations=(replace(evaluations((40,))[0], accuracy=1.0),))
    assert [accuracy for accuracy, _ in run_cost.reached(best)] == [0.95, 0.97, 0.98, 0.99]


def test_a_run_that_promises_nothing_has_costs_but_no_epsilon(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(data={"declared": "public"}))
    rows = run_cost.rows(read_run(tmp_path / "run"))
    assert "Records looked at" in rows
    assert not [name for name in rows if "ε" in name]


def test_a_run_without_a_plan_has_the_little_that_is_known(tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None))
    assert run_cost.rows(read_run(tmp_path / "run")) == {"Weights trained": "195"}


def test_a_shared_budget_is_named(record: RunRecord, filled: object) -> None:
    rows = run_cost.rows(replace(record, certificate=filled))  # type: ignore[arg-type]
    assert rows["Budget of the records"] == "MNIST, training half: ε = 2.75 of 3 spent, this run included"
