from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run, RunJson
from tests.written_runs import write_run


def test_the_page_goes_into_the_run_and_is_renewed(lehr: Run, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run")
    files.report.write_text("an older page")
    assert "run/report.html: finished: the plan was completed" in lehr("report", "run").stdout
    assert "first try" in files.report.read_text()


def test_the_page_goes_elsewhere_and_replaces_nothing_unasked(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", is_over=False)
    said = lehr_json("report", "run", "--to", "page.html")
    assert said == {"report": "page.html", "run": "first try", "state": "still running, or interrupted"}
    assert not files.report.exists()
    lehr("report", "run", "--to", "page.html", code=3)
    lehr("report", "run", "--to", "page.html", "--overwrite")


def test_a_folder_that_is_no_run_is_refused(lehr: Run) -> None:
    assert "not the directory of a run" in lehr("report", ".", code=3).stderr
