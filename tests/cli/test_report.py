"""``lehr report`` and ``lehr serve``."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from lehr.certificates.guarantee import claim_to_json
from lehr.files import strict_json
from lehr.reports.serving import COLUMNS
from tests.certificates.conftest import PUBLISHED
from tests.cli.conftest import Run, RunJson
from tests.predictions import PREDICTION
from tests.written_runs import PLAN, configuration, write_run


def test_the_page_goes_into_the_run_and_is_renewed(lehr: Run, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run")
    files.report.write_text("an older page")
    assert "run/report.html: finished: the plan was completed" in lehr("report", "run").stdout
    assert "first try" in files.report.read_text()
    assert "Where the plan stands" in files.report.read_text()


def test_the_page_goes_elsewhere_and_replaces_nothing_unasked(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", is_over=False)
    said = lehr_json("report", "run", "--to", "page.html")
    assert (said["report"], said["run"], said["state"]) == ("page.html", "first try", "still running, or interrupted")
    assert (said["proven"]["kind"], said["published"]) == ("proven", None)
    assert not files.report.exists()
    lehr("report", "run", "--to", "page.html", code=3)
    lehr("report", "run", "--to", "page.html", "--overwrite")


def test_both_numbers_are_said_with_what_they_are(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration() | {"claims": {"published": claim_to_json(PUBLISHED)}})
    said = lehr("report", "run").stdout
    assert "ε, proven: 0.20393 at δ = 1e-05" in said
    assert "ε as published: 1 — not a guarantee: the choice looks at the records" in said


def test_nothing_is_proven_of_a_run_without_noise(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    silent = replace(PLAN, noise_multiplier=0.0).to_json()
    for name, config in (("one", configuration(plan=silent)), ("two", configuration(plan=None))):
        write_run(tmp_path / name, config=config)
        assert "no privacy: it was trained without noise" in lehr("report", name).stdout
        said = lehr_json("report", name)
        assert (said["proven"], said["promises_nothing"]) == (None, "it was trained without noise")


def test_a_folder_that_is_no_run_is_refused(lehr: Run) -> None:
    assert "not the directory of a run" in lehr("report", ".", code=3).stderr


def test_several_runs_are_compared_on_one_page(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", config=configuration(run="open", data={"declared": "public"}))
    told = lehr("report", "one", "two", "--compare").stdout
    assert "comparison.html: 2 runs" in told
    assert "open (two): finished: the plan was completed\n  no privacy: the training records" in told
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
    assert "left out beside --compare" in lehr("report", "one", "none", "--compare", "--prediction", "x", code=2).stderr
    assert not (tmp_path / "comparison.html").exists()


def test_what_was_predicted_is_compared(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", config=configuration(training={"views": 4}))
    strict_json.write(tmp_path / "prediction.json", PREDICTION.to_json())
    told = lehr("report", "run", "--prediction", "prediction.json").stdout
    assert "95.0 % was reached: inside the interval" in told
    assert "training: views was 1" in told
    assert "Predicted and reached" in files.report.read_text()
    said = lehr_json("report", "run", "--prediction", "prediction.json")["prediction"]
    assert (said["verdict"], said["reached"], len(said["warnings"])) == ("inside the interval", 0.95, 2)
    assert lehr_json("report", "run")["prediction"] is None


def test_a_prediction_of_a_run_that_goes_on_waits(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps_taken=10, is_over=False)
    strict_json.write(tmp_path / "prediction.json", PREDICTION.to_json())
    assert "not compared: the run is not at the end" in lehr("report", "run", "--prediction", "prediction.json").stdout
    assert lehr_json("report", "run", "--prediction", "prediction.json")["prediction"]["reached"] is None


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "first")
    write_run(
        tmp_path / "runs" / "second", config=configuration(plan=None, method={"name": "plain-sgd"}), is_over=False
    )
    return tmp_path / "runs"


def test_the_list_is_printed_once(lehr: Run, runs: Path) -> None:
    words = " ".join(lehr("serve", "--list").stdout.split())
    assert words.startswith("Runs in runs")
    for expected in ("first", "plain-sgd", "no privacy"):
        assert expected in words


def test_a_program_is_told_every_column(lehr_json: RunJson, runs: Path) -> None:
    rows = lehr_json("serve", str(runs), "--list")["runs"]
    assert {row["name"]: row["kind"] for row in rows} == {"first": "finished", "second": "training"}
    assert all(set(row) == {"kind", *COLUMNS} for row in rows)


def test_names_cannot_write_to_the_terminal(lehr: Run, runs: Path) -> None:
    write_run(runs / "\x1b[2Jx")
    assert "\x1b" not in lehr("serve", "--list").stdout


@pytest.mark.parametrize("option", [["--port", "80"], ["--host", "::1"], ["--open"], ["--beyond-this-machine"]])
def test_what_is_about_serving_is_refused_beside_a_list(lehr: Run, runs: Path, option: list[str]) -> None:
    assert f"{option[0][2:].replace('-', '_')} must be left out" in lehr("serve", "--list", *option, code=2).stderr


def test_json_is_refused_where_there_is_no_end(lehr: Run, runs: Path) -> None:
    assert "beside --list" in lehr("serve", "--json", code=2).stderr


def test_others_are_let_in_only_when_that_is_said(lehr: Run, runs: Path) -> None:
    assert "--beyond-this-machine" in lehr("serve", "--host", "0.0.0.0", code=2).stderr


def test_it_serves_until_it_is_interrupted_and_says_no_more_than_who_may_look(runs: Path) -> None:
    command = [sys.executable, "-c", "from lehr.cli.main import main; main()", "serve", str(runs), "--port", "0"]
    command += ["--host", "0.0.0.0", "--beyond-this-machine"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            address = next(word for word in said.split() if word.startswith("http://127.0.0.1:"))
            with build_opener(ProxyHandler({})).open(address, timeout=30) as answer:
                assert b">first</a>" in answer.read()
            process.send_signal(signal.SIGINT)
            rest, complaints = process.communicate(timeout=30)
        finally:
            process.kill()  # or whatever fails above would wait for it forever
    assert (process.returncode, rest) == (0, "")
    [warning] = complaints.splitlines()
    assert "there is no password" in warning
