from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.papers import presets
from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job
from lehr.papers.store import Kept, Store
from lehr.papers.table import Column, Shown, Table, measured
from tests.cli.conftest import Run, RunJson
from tests.papers.made_up_jobs import Diverging, squared

COLUMNS = (Column(title="number", kind="count"), Column(title="ours", kind="count"))


def _jobs(size: Size) -> list[Job]:
    first = 10 if size.is_quick else 0
    return [squared(first + seed) for seed in range(size.seeds or 3)]


def _shown(outcomes: Outcomes, size: Size) -> Shown:
    found = [outcome["square"] for outcome in outcomes.of_all(_jobs(size))]
    return Shown(tables=(Table(title="Squares", columns=COLUMNS, rows=((len(found), measured(found)),)),))


def made(name: str, jobs: list[Job] | None = None) -> Experiment:
    given = _jobs if jobs is None else lambda size: jobs
    return Experiment(paper="adadp", name=name, title="Squares", about="Numbers.", jobs=given, shown=_shown)


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables whose jobs take no time, in place of a paper's."""
    failing: list[Job] = [squared(0), Diverging(function="made_up:failing")]
    every = (made("table1"), made("table2"), made("failing", failing))
    monkeypatch.setattr(presets, "experiments", lambda paper: every)


def test_a_table_is_run_kept_and_not_run_again(lehr: Run, tmp_path: Path) -> None:
    first = lehr("reproduce", "adadp", "table1", "--device", "cpu")
    assert "3 of 3 runs done" in first.stdout
    assert "3 jobs to do" in first.stderr
    assert len(list((tmp_path / "reproduced").iterdir())) == 3
    again = lehr("reproduce", "adadp", "table2", "--device", "cpu")  # whose jobs are the same
    assert "0 jobs to do, 3 done before" in again.stderr


def test_only_show_runs_nothing_and_writes_nothing(lehr: Run, tmp_path: Path) -> None:
    found = lehr("reproduce", "adadp", "table1", "--only-show")
    assert "0 of 3 runs done" in found.stdout
    assert "–" in found.stdout
    assert list(tmp_path.iterdir()) == []


def test_programs_get_every_number(lehr_json: RunJson) -> None:
    shape = lehr_json("reproduce", "adadp", "table1", "--device", "cpu", "--seeds", "2")
    [found] = shape["experiments"]
    assert (shape["is_quick"], found["jobs"], found["done"]) == (False, 2, 2)
    assert found["tables"][0]["rows"] == [[2, {"mean": 0.5, "spread": 0.5**0.5, "values": [0, 1]}]]


def test_what_is_kept_fills_an_empty_store_elsewhere(lehr: Run, tmp_path: Path) -> None:
    lehr("reproduce", "adadp", "table1", "--device", "cpu", "--seeds", "2", "--keep", "kept.json", "--quiet")
    assert len(Kept.read(tmp_path / "kept.json").entries) == 2
    shown = lehr("reproduce", "adadp", "table1", "--from", "kept.json", "--store", "other", "--only-show")
    assert "2 of 3 runs done" in shown.stdout
    assert not (tmp_path / "other").exists()
    more = lehr("reproduce", "adadp", "table1", "--from", "kept.json", "--store", "other", "--keep", "kept.json")
    assert "1 job to do, 2 done before" in more.stderr
    assert len(Kept.read(tmp_path / "kept.json").entries) == 3
    assert Store(tmp_path / "other").has(squared(2))


def test_several_tables_are_kept_in_a_folder_one_file_each(lehr: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    lehr("reproduce", "adadp", "table1", "table2", "--device", "cpu", "--keep", "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["adadp_table1.json", "adadp_table2.json"]
    refused = lehr("reproduce", "adadp", "table1", "table2", "--device", "cpu", "--keep", "one.json", code=2)
    assert "keep must be a folder" in refused.stderr


def test_what_is_quick_says_so_everywhere_and_is_kept_apart(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    shape = lehr_json("reproduce", "adadp", "table1", "--quick", "--device", "cpu", "--keep", "quick.json")
    assert shape["is_quick"] is True
    assert "quick" in shape["experiments"][0]["tables"][0]["title"]
    assert json.loads((tmp_path / "quick.json").read_text())["is_quick"] is True
    lehr("reproduce", "adadp", "table1", "--device", "cpu", "--keep", "whole.json")
    for arguments in (["--quick", "--keep", "whole.json"], ["--keep", "quick.json"]):
        refused = lehr("reproduce", "adadp", "table1", "--device", "cpu", "--store", "new", *arguments, code=2)
        assert "is_quick" in refused.stderr
    assert not (tmp_path / "new").exists()  # before anything is run


def test_a_failed_job_is_told_and_the_command_fails(lehr: Run) -> None:
    found = lehr("reproduce", "adadp", "failing", "--device", "cpu", code=1)
    assert "failed, and run again next time" in found.stdout
    assert "the loss is nan" in found.stdout


def test_a_damaged_outcome_is_named_and_run_again(lehr: Run, tmp_path: Path) -> None:
    lehr("reproduce", "adadp", "table1", "--device", "cpu")
    damaged = sorted((tmp_path / "reproduced").iterdir())[0]
    damaged.write_text("{")
    shown = lehr("reproduce", "adadp", "table1", "--only-show")
    assert "2 of 3 runs done" in shown.stdout
    assert "1 outcome cannot be read and is left out: cannot use" in shown.stderr
    again = lehr("reproduce", "adadp", "table1", "--device", "cpu")
    assert damaged.name in again.stderr
    assert "1 job to do, 2 done before" in again.stderr
    assert "3 of 3 runs done" in again.stdout


def test_after_its_minutes_nothing_is_begun_and_the_same_command_goes_on(lehr: Run) -> None:
    found = lehr("reproduce", "adadp", "table1", "table2", "--device", "cpu", "--minutes", "1e-9")  # of the same jobs
    assert "3 of 3 jobs are left; the same command goes on from here" in found.stderr
    assert "3 of 3 runs done" in lehr("reproduce", "adadp", "table1", "--device", "cpu").stdout


def test_all_of_a_paper_is_one_page(lehr: Run, tmp_path: Path) -> None:
    lehr("reproduce", "adadp", "all", "--only-show", "--to", "page.html")
    assert (tmp_path / "page.html").read_text().count("Squares") >= 3
    refused = lehr("reproduce", "adadp", "all", "--only-show", "--to", "page.html", code=3)
    assert "--overwrite" in refused.stderr


def test_what_there_is_is_listed(lehr: Run, lehr_json: RunJson) -> None:
    assert "table1" in lehr("reproduce", "list").stdout
    listed = lehr_json("reproduce", "list")["papers"]
    assert set(listed) == set(presets.PAPERS)
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
def test_what_cannot_be_is_refused_by_its_name(lehr: Run, arguments: list[str], words: str) -> None:
    assert words in lehr("reproduce", *arguments, code=2).stderr


def test_a_file_that_keeps_nothing_is_refused_by_its_name(lehr: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text("{}")
    assert "wrong.json" in lehr("reproduce", "adadp", "table1", "--from", "wrong.json", code=3).stderr
    assert "missing.json" in lehr("reproduce", "adadp", "table1", "--from", "missing.json", code=3).stderr
