from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from lehr.reports import serving
from lehr.reports.run_list import COLUMNS
from tests.cli.conftest import Run, RunJson
from tests.written_runs import configuration, write_run


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


def test_a_folder_that_is_not_there_is_named(lehr: Run) -> None:
    assert "cannot list the runs in runs: there is no such folder" in lehr("serve", code=3).stderr


@pytest.mark.parametrize("option", [["--port", "80"], ["--host", "::1"], ["--open"], ["--beyond-this-machine"]])
def test_what_is_about_serving_is_refused_beside_a_list(lehr: Run, runs: Path, option: list[str]) -> None:
    assert f"{option[0][2:].replace('-', '_')} must be left out" in lehr("serve", "--list", *option, code=2).stderr


def test_json_is_refused_where_there_is_no_end(lehr: Run, runs: Path) -> None:
    assert "beside --list" in lehr("serve", "--json", code=2).stderr


def test_a_port_that_is_taken_is_named(lehr: Run, runs: Path) -> None:
    taken = serving.server(runs, host="127.0.0.1", port=0)
    try:
        said = lehr("serve", "--port", str(taken.server_port), code=2).stderr
    finally:
        taken.server_close()
    assert f"given: {taken.server_port}" in said


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
