from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lehr.files import json_file
from lehr.reports.run_claims import to_json
from tests.cli.conftest import Run, RunJson
from tests.predictions import PREDICTION
from tests.reports.conftest import PUBLISHED
from tests.written_runs import PLAN, configuration, write_run


def test_the_page_goes_into_the_run_and_is_renewed(lehr: Run, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run")
    files.report.write_text("an older page")
    assert "run/report.html: finished: the plan was completed" in lehr("report", "run").stdout
    assert "first try" in files.report.read_text()


def test_the_page_goes_elsewhere_and_replaces_nothing_unasked(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", is_over=False)
    said = lehr_json("report", "run", "--to", "page.html")
    assert (said["report"], said["run"], said["state"]) == ("page.html", "first try", "still running, or interrupted")
    assert (said["proven"]["kind"], said["published"]) == ("proven", None)
    assert not files.report.exists()
    lehr("report", "run", "--to", "page.html", code=3)
    lehr("report", "run", "--to", "page.html", "--overwrite")


def test_both_numbers_are_said_with_what_they_are(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration() | {"claims": {"published": to_json(PUBLISHED)}})
    said = lehr("report", "run").stdout
    assert "ε, proven: 0.20393 at δ = 1e-05" in said
    assert "ε as published: 1 — not a guarantee: the choice looks at the records" in said


def test_a_run_without_privacy_is_said_to_have_none(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None))
    assert "no privacy: it was trained without noise" in lehr("report", "run").stdout


def test_programs_are_told_that_nothing_is_proven_of_a_run_without_noise(lehr_json: RunJson, tmp_path: Path) -> None:
    silent = replace(PLAN, noise_multiplier=0.0).to_json()
    for name, config in (("one", configuration(plan=silent)), ("two", configuration(plan=None))):
        write_run(tmp_path / name, config=config)
        said = lehr_json("report", name)
        assert (said["proven"], said["promises_nothing"]) == (None, "it was trained without noise")


def test_a_folder_that_is_no_run_is_refused(lehr: Run) -> None:
    assert "not the directory of a run" in lehr("report", ".", code=3).stderr


def test_several_runs_are_compared_on_one_page(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", config=configuration(run="open", data={"declared": "public"}))
    told = lehr("report", "one", "two", "--compare").stdout
    assert "comparison.html: 2 runs" in told
    assert "open (two): finished: the plan was completed\n  no privacy: the records" in told
    assert "open [no privacy]" in (tmp_path / "comparison.html").read_text()
    said = lehr_json("report", "one", "two", "--compare", "--to", "both.html")
    assert (said["report"], [run["run"] for run in said["runs"]]) == ("both.html", ["first try", "open"])
    assert said["runs"][0]["proven"]["kind"] == "proven"
    assert (said["runs"][1]["proven"], said["runs"][1]["declared"]) == (None, "public")
    lehr("report", "one", "two", "--compare", code=3)  # it would replace a page unasked
    lehr("report", "one", "two", "--compare", "--overwrite")


def test_what_cannot_be_compared_is_refused(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    (tmp_path / "none").mkdir()
    assert "several with --compare" in lehr("report", "one", "none", code=2).stderr
    assert "two or more with --compare, each once" in lehr("report", "one", "./one", "--compare", code=2).stderr
    assert "two or more with --compare" in lehr("report", "one", "--compare", code=2).stderr
    assert (
        "cannot use none: it is not the directory of a run" in lehr("report", "one", "none", "--compare", code=3).stderr
    )
    assert "left out with --compare" in lehr("report", "one", "none", "--compare", "--prediction", "x", code=2).stderr
    assert not (tmp_path / "comparison.html").exists()


def test_where_the_plan_stands_is_on_the_page(lehr: Run, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run")
    lehr("report", "run")
    assert "Where the plan stands" in files.report.read_text()


def test_what_was_predicted_is_compared(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", config=configuration(training={"views": 4}))
    json_file.write(tmp_path / "prediction.json", PREDICTION.to_json())
    told = lehr("report", "run", "--prediction", "prediction.json").stdout
    assert "95.0 % was reached: inside the interval" in told
    assert "warning: This run is at another setting than the simulated ones: training: views was 1" in told
    assert "Predicted and reached" in files.report.read_text()
    said = lehr_json("report", "run", "--prediction", "prediction.json")["prediction"]
    assert (said["verdict"], said["reached"], len(said["warnings"])) == ("inside the interval", 0.95, 2)
    assert lehr_json("report", "run")["prediction"] is None


def test_a_prediction_of_a_run_that_goes_on_waits(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps_taken=10, is_over=False)
    json_file.write(tmp_path / "prediction.json", PREDICTION.to_json())
    assert "not compared: the run is not at the end" in lehr("report", "run", "--prediction", "prediction.json").stdout
    assert lehr_json("report", "run", "--prediction", "prediction.json")["prediction"]["reached"] is None


def test_a_file_that_is_no_prediction_is_refused(lehr: Run, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run")
    lehr("report", "run", "--prediction", str(files.config), code=3)
