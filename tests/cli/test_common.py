"""What all commands share: output, exit codes, and values given with --set."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from lehr.cli import common
from lehr.cli.common import Commands, exit_code, parse_settings, resumable
from lehr.cli.plan import read_plan
from lehr.errors import (
    AccountantFailed,
    BudgetExceeded,
    CertificateMismatch,
    DamagedFile,
    ForeignFile,
    InvalidValue,
    LehrError,
    StoreError,
    Unreachable,
    UnsupportedEvent,
)
from lehr.planning.budget import Budget


def test_json_is_one_object_with_infinity_as_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_json({"epsilon": math.inf, "steps": 3})
    assert json.loads(capsys.readouterr().out) == {"epsilon": "infinity", "steps": 3}


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_tables_fit_the_terminal_and_lose_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    reason = "a reason of many words " * 10
    common.print_table("Title", ("accountant", "why"), [("pld", reason)])
    common.print_facts("Title", {"name": reason})
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert out.count("reason") == 20


def test_cells_are_text_and_not_markup_or_codes(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_facts("Title", {"run": "[red]one[/red] :smile: \x1b[31m"})
    out = capsys.readouterr().out
    assert "[red]one[/red] :smile:" in out
    assert "\x1b" not in out


def test_there_is_no_colour_even_on_a_terminal_that_has_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    common.print_facts("Title", {"name": "3.0"})
    out = capsys.readouterr().out
    assert "\x1b[1m" in out  # a title may be bold
    assert not re.search("\x1b\\[[34]", out)


def test_nothing_but_what_is_printable_is_printed() -> None:
    assert common.printable("ε ≤ 3\x1b[2J\n\u202e") == "ε ≤ 3\\x1b[2J\\n\\u202e"


def test_without_a_person_looking_there_is_no_spinner(capsys: pytest.CaptureFixture[str]) -> None:
    with common.working("Counting"):
        pass
    assert capsys.readouterr() == ("", "")


def _failing_with(error: Exception) -> typer.Typer:
    app = typer.Typer(cls=Commands)

    @app.command()
    def fail(json: bool = False) -> None:
        raise error

    @app.command()
    def succeed() -> None:
        pass

    return app


CODES: dict[int, list[Exception]] = {
    1: [
        BudgetExceeded("over"),
        Unreachable("never"),
        CertificateMismatch("false"),
        AccountantFailed(accountant="pld", reason="too long"),
        UnsupportedEvent(accountant="pld", event="this", reason="unknown"),
    ],
    2: [InvalidValue("steps", allowed="a whole number >= 1", given=0), typer.BadParameter("what?")],
    3: [ForeignFile("not ours"), DamagedFile("cut")],
}


@pytest.mark.parametrize("code, error", [(code, error) for code, errors in CODES.items() for error in errors])
def test_every_error_has_its_exit_code_and_one_line(code: int, error: Exception) -> None:
    assert exit_code(error) == code
    result = CliRunner().invoke(_failing_with(error), ["fail"])
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("lehr: ")
    assert result.stderr.count("\n") == 1


def test_with_json_the_error_is_also_an_object() -> None:
    result = CliRunner().invoke(_failing_with(BudgetExceeded("over")), ["fail", "--json"])
    assert json.loads(result.stdout) == {"error": {"kind": "BudgetExceeded", "message": "over", "exit_code": 1}}
    assert result.stderr == "lehr: over\n"


def test_a_message_from_a_stranger_cannot_move_the_cursor_or_fill_the_screen() -> None:
    result = CliRunner().invoke(_failing_with(LehrError("\x1b[2J\x07 two\nlines " + "x" * 5000)), ["fail"])
    assert "\x1b" not in result.stderr
    assert "\x07" not in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 1100


def test_a_file_that_the_system_refuses_is_one_line_and_a_code() -> None:
    error = PermissionError(13, "Permission denied", "closed/plan.json")
    result = CliRunner().invoke(_failing_with(error), ["fail", "--json"])
    assert (result.exit_code, result.stderr) == (3, "lehr: cannot use closed/plan.json: Permission denied\n")
    assert json.loads(result.stdout)["error"]["exit_code"] == 3


def test_an_answer_that_cannot_be_written_is_one_line_and_a_code() -> None:
    result = CliRunner().invoke(_failing_with(OSError(28, "No space left on device")), ["fail"])
    assert (result.exit_code, result.stderr) == (3, "lehr: cannot write the answer: No space left on device\n")


def test_bytes_that_are_no_text_are_one_line_and_a_code() -> None:
    result = CliRunner().invoke(_failing_with(UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogate")), ["fail"])
    assert (result.exit_code, result.stderr) == (2, "lehr: text must be UTF-8; given: 'other bytes'\n")


def test_an_interrupted_command_leaves_with_130() -> None:
    assert CliRunner().invoke(_failing_with(typer.Abort()), ["fail"]).exit_code == 130


def test_a_mistake_of_ours_is_not_hidden() -> None:
    result = CliRunner().invoke(_failing_with(ZeroDivisionError()), ["fail"])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["plan", "--sigma", "3"], "No such option: --sigma"),
        (["plan", "--records", "many"], "--records"),
        (["plan"], "Missing option '--records'"),
        (["planning"], "No such command 'planning'"),
        (["budget"], "Missing command"),
        (["budget", "show"], "Missing argument"),
        (["account", "--adjacency", "next-to"], "add-or-remove-one"),
    ],
)
def test_a_command_that_is_not_understood_says_where_to_look(
    lehr: Callable[..., Result], arguments: list[str], words: str
) -> None:
    complaint = lehr(*arguments, code=2).stderr
    assert words in complaint
    assert "(see: lehr" in complaint
    assert complaint.count("\n") == 1


def test_whoever_interrupts_work_that_is_kept_is_told_how_to_go_on() -> None:
    app = typer.Typer(cls=Commands)

    @app.command()
    def work() -> None:
        with resumable():
            raise KeyboardInterrupt

    @app.command()
    def succeed() -> None:
        pass

    result = CliRunner().invoke(app, ["work"])
    assert result.exit_code == 130
    assert result.stderr.startswith("lehr: stopped; the same command goes on")


def test_a_budget_is_no_plan(tmp_path: Path) -> None:
    with Budget.create(tmp_path / "clinic.budget", dataset="clinic", epsilon=1.0, delta=1e-5):
        pass
    with pytest.raises(StoreError, match="it is not a plan, but a budget"):
        read_plan(tmp_path / "clinic.budget")


@pytest.mark.parametrize(
    "setting, table, key, value",
    [
        ("salvage=true", "method", "salvage", True),
        ("rejection_threshold=4", "method", "rejection_threshold", 4),
        ("learning_rate=1e-3", "method", "learning_rate", 1e-3),
        ("cooling=classic", "method", "cooling", "classic"),
        ('cooling="classic"', "method", "cooling", "classic"),
        ("step_scales=[0.5, 1.0]", "method", "step_scales", [0.5, 1.0]),
        ("schedule={kind='constant'}", "method", "schedule", {"kind": "constant"}),
        ("training.views=2", "training", "views", 2),
        ("model.activation=tempered_sigmoid(1.97, 2.27, 1.15)", "model", "activation", None),
        ("privacy.sampling=without-replacement", "privacy", "sampling", "without-replacement"),
    ],
)
def test_a_value_is_read_as_in_a_file(setting: str, table: str, key: str, value: Any) -> None:
    [(found, keys)] = parse_settings([setting]).items()
    assert found == table
    assert keys == {key: setting.partition("=")[2] if value is None else value}
    assert type(keys[key]) is (str if value is None else type(value))


@pytest.mark.parametrize(
    "given",
    [["views"], ["=3"], ["a.b.c=3"], ["views="], ["views=[1"], ["views=1\nother=2"], ["views=1", "views=2"], ["x={"]],
    ids=str,
)
def test_what_is_no_setting_is_refused(given: list[str]) -> None:
    with pytest.raises(InvalidValue, match="set must be"):
        parse_settings(given)
