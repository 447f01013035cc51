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


def test_own_page_is_renewed_and_others_are_replaced_only_when_asked(
    lehr: Run, lehr_json: RunJson, tmp_path: Path
) -> None:
    files = write_run(tmp_path / "run", is_over=False)
    files.report.write_text("an older page")
    answer = lehr_json("report", "run", "--to", "page.html")
    assert (answer["report"], answer["run"], answer["state"]) == (
        "page.html",
        "first try",
        "still running, or interrupted",
    )
    assert (answer["proven"]["kind"], answer["published"], answer["prediction"]) == ("proven", None, None)
    assert files.report.read_text() == "an older page"
    lehr("report", "run", "--to", "page.html", "--overwrite")
    assert "run/report.html: still running" in lehr("report", "run").stdout
    assert "first try" in files.report.read_text()


def test_both_claims_are_shown_with_their_worth(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration() | {"claims": {"published": claim_to_json(PUBLISHED)}})
    shown = lehr("report", "run").stdout
    assert "ε, proven: 0.20393 at δ = 1e-05" in shown
    assert "ε as published: 1 — not a guarantee: the choice looks at the records" in shown
    write_run(tmp_path / "plain", config=configuration(plan=replace(PLAN, noise_multiplier=0.0).to_json()))
    assert "no privacy: it was trained without noise" in lehr("report", "plain").stdout
    answer = lehr_json("report", "plain")
    assert (answer["proven"], answer["promises_nothing"]) == (None, "it was trained without noise")


def test_several_runs_are_compared_on_one_page(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    write_run(tmp_path / "one")
    write_run(tmp_path / "two", config=configuration(run="open", data={"declared": "public"}))
    shown = lehr("report", "one", "two", "--compare").stdout
    assert "comparison.html: 2 runs" in shown
    assert "open (two): finished: the plan was completed\n  no privacy: the training records" in shown
    assert "open [no privacy]" in (tmp_path / "comparison.html").read_text()
    answer = lehr_json("report", "one", "two", "--compare", "--to", "both.html")
    assert (answer["report"], [run["run"] for run in answer["runs"]]) == ("both.html", ["first try", "open"])
    assert answer["runs"][0]["proven"]["kind"] == "proven"
    assert (answer["runs"][1]["proven"], answer["runs"][1]["declared"]) == (None, "public")
    lehr("report", "one", "two", "--compare", code=3)  # it would replace a page unasked


def test_prediction_is_compared_with_the_run(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", config=configuration(training={"views": 4}))
    write_run(tmp_path / "going-on", steps_taken=10, is_over=False)
    strict_json.write(tmp_path / "prediction.json", PREDICTION.to_json())
    shown = lehr("report", "run", "--prediction", "prediction.json").stdout
    assert "95.0 % was reached: inside the interval" in shown
    assert "training: views was 1" in shown
    assert "Predicted and reached" in files.report.read_text()
    answer = lehr_json("report", "run", "--prediction", "prediction.json")["prediction"]
    assert (answer["verdict"], answer["reached"], len(answer["warnings"])) == ("inside the interval", 0.95, 2)
    waiting = lehr_json("report", "going-on", "--prediction", "prediction.json")["prediction"]
    assert (waiting["verdict"], waiting["reached"]) == ("not compared", None)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "\x1b[2Jfirst")
    plain = configuration(plan=None, method={"name": "plain-sgd"})
    write_run(tmp_path / "runs" / "second", config=plain, is_over=False)
    return tmp_path / "runs"


def test_list_is_printed_once(lehr: Run, lehr_json: RunJson, runs: Path) -> None:
    shown = lehr("serve", "--list").stdout
    assert " ".join(shown.split()).startswith("Runs in runs")
    assert all(expected in shown for expected in ("first", "plain-sgd", "no privacy"))
    assert "\x1b" not in shown
    rows = lehr_json("serve", str(runs), "--list")["runs"]
    assert {row["name"]: row["kind"] for row in rows} == {"\x1b[2Jfirst": "finished", "second": "training"}
    assert all(set(row) == {"kind", *COLUMNS} for row in rows)


def test_server_runs_until_it_is_interrupted(runs: Path) -> None:
    command = [sys.executable, "-c", "from lehr.cli.main import main; main()", "serve", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(word for word in process.stdout.readline().split() if word.startswith("http://127.0.0.1:"))
            with build_opener(ProxyHandler({})).open(address, timeout=30) as answer:
                assert b">second</a>" in answer.read()
            process.send_signal(signal.SIGINT)
            rest, complaints = process.communicate(timeout=30)
        finally:
            process.kill()  # or whatever fails above would wait for it forever
    assert (process.returncode, rest, complaints) == (0, "", "")
