from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from experiments import experiment
from experiments.__main__ import app, print_wide_table
from experiments.experiment import Column, Experiment, Job, Outcomes, Report, Size, Table, statistic
from experiments.store import ResultFile, Store
from tests.experiments.made_up_jobs import Diverging, squared

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]

COLUMNS = (Column(title="number", kind="count"), Column(title="ours", kind="count"))


def _jobs(size: Size) -> list[Job]:
    first = 10 if size.is_quick else 0
    return [squared(first + seed) for seed in range(size.seeds or 3)]


def made(name: str, jobs: list[Job] | None = None) -> Experiment:
    def report(outcomes: Outcomes, size: Size) -> Report:
        found = [outcome["square"] for outcome in outcomes.of_all(_jobs(size) if jobs is None else jobs)]
        return Report(tables=(Table(title="Squares", columns=COLUMNS, rows=((len(found), statistic(found)),)),))

    return Experiment(paper="adadp", name=name, title="Squares", about="Numbers.", report=report)


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables whose jobs take no time, in place of a paper's."""
    failing: list[Job] = [squared(0), Diverging(function="made_up:failing")]
    every = (made("table1"), made("table2"), made("failing", failing))
    monkeypatch.setattr(experiment, "experiments", lambda paper: every)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, f"{result.exit_code}: {result.stdout}{result.stderr}{result.exception!r}"
        return result

    return run


@pytest.fixture
def command_json(command: Run) -> RunJson:
    return lambda *arguments, code=0: dict(json.loads(command(*arguments, "--json", code=code).stdout))


def test_a_table_is_run_kept_and_not_run_again(command: Run, tmp_path: Path) -> None:
    first = command("adadp", "table1", "--device", "cpu")
    assert "3 of 3 runs done" in first.stdout
    assert "3 jobs to do" in first.stderr
    assert len(list((tmp_path / "reproduced").iterdir())) == 3
    again = command("adadp", "table2", "--device", "cpu")  # whose jobs are the same
    assert "0 jobs to do, 3 done before" in again.stderr


def test_only_show_runs_nothing_and_writes_nothing(command: Run, tmp_path: Path) -> None:
    found = command("adadp", "table1", "--only-show")
    assert "0 of 3 runs done" in found.stdout
    assert "–" in found.stdout
    assert list(tmp_path.iterdir()) == []


def test_programs_get_every_number(command_json: RunJson) -> None:
    shape = command_json("adadp", "table1", "--device", "cpu", "--seeds", "2")
    [found] = shape["experiments"]
    assert (shape["is_quick"], found["jobs"], found["done"]) == (False, 2, 2)
    assert found["tables"][0]["rows"] == [[2, {"mean": 0.5, "spread": 0.5**0.5, "values": [0, 1]}]]


def test_what_is_kept_fills_an_empty_store_elsewhere(command: Run, tmp_path: Path) -> None:
    command("adadp", "table1", "--device", "cpu", "--seeds", "2", "--keep", "kept.json", "--quiet")
    assert len(ResultFile.read(tmp_path / "kept.json").entries) == 2
    shown = command("adadp", "table1", "--from", "kept.json", "--store", "other", "--only-show")
    assert "2 of 3 runs done" in shown.stdout
    assert not (tmp_path / "other").exists()
    more = command("adadp", "table1", "--from", "kept.json", "--store", "other", "--keep", "kept.json")
    assert "1 job to do, 2 done before" in more.stderr
    assert len(ResultFile.read(tmp_path / "kept.json").entries) == 3
    assert Store(tmp_path / "other").has(squared(2))


def test_several_tables_are_kept_in_a_folder_one_file_each(command: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    command("adadp", "table1", "table2", "--device", "cpu", "--keep", "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["adadp_table1.json", "adadp_table2.json"]
    refused = command("adadp", "table1", "table2", "--device", "cpu", "--keep", "one.json", code=2)
    assert "keep must be a folder" in refused.stderr


def test_quick_outcomes_are_labelled_and_kept_apart(command: Run, command_json: RunJson, tmp_path: Path) -> None:
    shape = command_json("adadp", "table1", "--quick", "--device", "cpu", "--keep", "quick.json")
    assert shape["is_quick"] is True
    assert "quick" in shape["experiments"][0]["tables"][0]["title"]
    assert json.loads((tmp_path / "quick.json").read_text())["is_quick"] is True
    command("adadp", "table1", "--device", "cpu", "--keep", "whole.json")
    for arguments in (["--quick", "--keep", "whole.json"], ["--keep", "quick.json"]):
        refused = command("adadp", "table1", "--device", "cpu", "--store", "new", *arguments, code=2)
        assert "is_quick" in refused.stderr
    assert not (tmp_path / "new").exists()  # before anything is run


def test_a_failed_job_is_told_and_the_command_fails(command: Run) -> None:
    found = command("adadp", "failing", "--device", "cpu", code=1)
    assert "failed, and run again next time" in found.stdout
    assert "the loss is nan" in found.stdout


def test_a_damaged_outcome_is_named_and_run_again(command: Run, tmp_path: Path) -> None:
    command("adadp", "table1", "--device", "cpu")
    damaged = sorted((tmp_path / "reproduced").iterdir())[0]
    damaged.write_text("{")
    shown = command("adadp", "table1", "--only-show")
    assert "2 of 3 runs done" in shown.stdout
    assert "1 outcome cannot be read and is left out: cannot use" in shown.stderr
    again = command("adadp", "table1", "--device", "cpu")
    assert damaged.name in again.stderr
    assert "1 job to do, 2 done before" in again.stderr
    assert "3 of 3 runs done" in again.stdout


def test_after_its_minutes_nothing_is_begun_and_the_same_command_goes_on(command: Run) -> None:
    found = command("adadp", "table1", "table2", "--device", "cpu", "--minutes", "1e-9")  # of the same jobs
    assert "3 of 3 jobs are left; the same command continues from here" in found.stderr
    assert "3 of 3 runs done" in command("adadp", "table1", "--device", "cpu").stdout


def test_all_of_a_paper_is_one_page(command: Run, tmp_path: Path) -> None:
    command("adadp", "all", "--only-show", "--to", "page.html")
    assert (tmp_path / "page.html").read_text().count("Squares") >= 3
    refused = command("adadp", "all", "--only-show", "--to", "page.html", code=3)
    assert "--overwrite" in refused.stderr


def test_what_there_is_is_listed(command: Run, command_json: RunJson) -> None:
    assert "table1" in command("list").stdout
    listed = command_json("list")["papers"]
    assert set(listed) == set(experiment.PAPERS)
    assert listed["adadp"][0] == {"name": "table1", "title": "Squares", "about": "Numbers."}


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["adadp"], "name must be given: all, or one or more of table1"),
        (["adadp", "table9"], "name must be one of failing, table1, table2; given: 'table9'"),
        (["adadp", "table1", "--seeds", "0"], "seeds"),
        (["adadp", "table1", "--processes", "0"], "processes"),
        (["adadp", "table1", "--minutes", "0"], "minutes"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(command: Run, arguments: list[str], words: str) -> None:
    assert words in command(*arguments, code=2).stderr


def test_a_file_that_keeps_nothing_is_refused_by_its_name(command: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text("{}")
    assert "wrong.json" in command("adadp", "table1", "--from", "wrong.json", code=3).stderr
    assert "missing.json" in command("adadp", "table1", "--from", "missing.json", code=3).stderr


def test_no_word_of_a_table_is_broken_and_numbers_stand_on_one_line_before_texts_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "48")
    headings = ("method", "ours (%)", "candidates drawn", "what differs")
    rows = [("a method with quite a long name", "91.29 ± 1.70 (2)", "260", "[1]")]
    print_wide_table("A table", headings, rows, is_number=(False, True, True, False))
    told = capsys.readouterr().out
    assert all(word in told for word in ("91.29 ± 1.70 (2)", "candidates", "differs", "method"))
    assert max(map(len, told.splitlines())) <= 48
