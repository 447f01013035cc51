from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from experiments import experiment
from experiments.__main__ import app
from experiments.experiment import Experiment, Job, Outcomes, Report, Size, report, statistic, table
from experiments.store import ResultFile, Store
from tests.experiments.made_up_jobs import made_up

Run = Callable[..., Result]


def made(name: str, *jobs: Job) -> Experiment:
    def jobs_of(size: Size) -> tuple[Job, ...]:
        first = 10 if size.is_quick else 0
        return jobs or tuple(made_up(first + seed) for seed in range(size.seeds or 3))

    def draw(outcomes: Outcomes, size: Size) -> Report:
        found = [outcome["square"] for outcome in outcomes.get_all(jobs_of(size))]
        return report(table("Squares", "number [count] | ours [count]", [(len(found), statistic(found))]))

    return Experiment(paper="adadp", name=name, title="Squares", about="Numbers.", report=draw)


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables whose jobs take no time, in place of a paper's."""
    failing = made("failing", made_up(0), made_up("diverge"))
    every = (made("table1"), made("table2"), failing)
    monkeypatch.setattr(experiment, "experiments", lambda paper: every)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, code: int = 0) -> Result:
        device = [] if arguments[0] == "list" else ["--device", "cpu"]
        result = CliRunner().invoke(app, [*arguments, *device])
        assert result.exit_code == code, f"{result.exit_code}: {result.stdout}{result.stderr}{result.exception!r}"
        return result

    return run


def as_json(result: Result) -> dict[str, Any]:
    return dict(json.loads(result.stdout))


def test_a_table_is_run_and_not_run_again(command: Run, tmp_path: Path) -> None:
    shown = command("adadp", "table1", "--only-show")
    assert "0 of 3 runs done" in shown.stdout
    assert list(tmp_path.iterdir()) == []
    first = command("adadp", "table1")
    assert "3 of 3 runs done" in first.stdout
    assert "3 jobs to do" in first.stderr
    assert len(list((tmp_path / "reproduced").iterdir())) == 3
    again = command("adadp", "table2")  # whose jobs are the same
    assert "0 jobs to do, 3 done before" in again.stderr


def test_kept_outcomes_are_used_elsewhere(command: Run, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "adadp_table1.json"
    command("adadp", "table1", "--seeds", "2", "--keep", "kept", "--quiet")
    assert len(ResultFile.read(path).entries) == 2
    shown = command("adadp", "table1", "--from", "kept", "--store", "other", "--only-show")
    assert "2 of 3 runs done" in shown.stdout
    assert not (tmp_path / "other").exists()
    more = command("adadp", "table1", "table2", "--from", str(path), "--store", "other", "--keep", "kept")
    assert "1 job to do, 2 done before" in more.stderr
    assert len(ResultFile.read(path).entries) == 3
    assert (tmp_path / "kept" / "adadp_table2.json").exists()
    assert Store(tmp_path / "other").has(made_up(2))


def test_quick_outcomes_are_labelled_and_kept_apart(command: Run, tmp_path: Path) -> None:
    shape = as_json(command("adadp", "table1", "--quick", "--json", "--keep", "quick"))
    assert shape["is_quick"] is True
    assert "quick" in shape["experiments"][0]["tables"][0]["title"]
    refused = command("adadp", "table1", "--store", "new", "--keep", "quick", code=2)
    assert "is_quick" in refused.stderr
    assert not (tmp_path / "new").exists()  # before anything is run


def test_a_failed_job_fails_the_command(command: Run) -> None:
    assert "the loss is nan" in command("adadp", "failing", code=1).stdout


def test_a_damaged_outcome_is_named_and_run_again(command: Run, tmp_path: Path) -> None:
    command("adadp", "table1")
    damaged = sorted((tmp_path / "reproduced").iterdir())[0]
    damaged.write_text("{")
    shown = command("adadp", "table1", "--only-show")
    assert "2 of 3 runs done" in shown.stdout
    assert damaged.name in shown.stderr
    again = command("adadp", "table1")
    assert "1 job to do, 2 done before" in again.stderr
    assert "3 of 3 runs done" in again.stdout


def test_all_of_a_paper_is_one_page(command: Run, tmp_path: Path) -> None:
    command("adadp", "all", "--only-show", "--to", "page.html")
    assert (tmp_path / "page.html").read_text().count("Squares") >= 3
    command("adadp", "all", "--only-show", "--to", "page.html", code=3)


def test_experiments_are_listed(command: Run) -> None:
    assert "table1" in command("list").stdout
    listed = as_json(command("list", "--json"))["papers"]
    assert set(listed) == set(experiment.PAPERS)
    assert listed["adadp"][0] == {"name": "table1", "title": "Squares", "about": "Numbers."}


@pytest.mark.parametrize(
    "arguments, name, code",
    [
        (["adadp"], "name", 2),
        (["adadp", "table9"], "name", 2),
        (["adadp", "table1", "--seeds", "0"], "seeds", 2),
        (["adadp", "table1", "--processes", "0"], "processes", 2),
        (["adadp", "table1", "--minutes", "0"], "minutes", 2),
        (["adadp", "table1", "--from", "missing.json"], "missing.json", 3),
    ],
)
def test_wrong_arguments_are_refused_by_name(command: Run, arguments: list[str], name: str, code: int) -> None:
    assert name in command(*arguments, code=code).stderr


def test_numbers_of_a_wide_table_are_not_broken(command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ("a method with quite a long name", statistic([0.9009, 0.9249]), 260, "not in the paper")
    columns = "method | ours [percent] | candidates drawn [count] | what differs"
    wide = Experiment(
        paper="adadp", name="wide", title="", about="", report=lambda *_: report(table("A table", columns, [row]))
    )
    monkeypatch.setattr(experiment, "experiments", lambda paper: (wide,))
    monkeypatch.setenv("COLUMNS", "48")
    lines = command("adadp", "wide", "--only-show").stdout.splitlines()
    assert any("91.29 ± 1.70 (2)" in line for line in lines)
    assert max(map(len, lines)) <= 48
