from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner, Result

from lehr.cli.failing import Commands, exit_code, that_goes_on
from lehr.errors import (
    AccountantFailed,
    BudgetExceeded,
    CertificateMismatch,
    DamagedFile,
    ForeignFile,
    InvalidValue,
    LehrError,
    Unreachable,
    UnsupportedEvent,
)

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


def _failing_with(error: Exception) -> typer.Typer:
    app = typer.Typer(cls=Commands)

    @app.command()
    def fail(json: bool = False) -> None:
        raise error

    @app.command()
    def succeed() -> None:
        pass

    return app


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
        with that_goes_on():
            raise KeyboardInterrupt

    @app.command()
    def succeed() -> None:
        pass

    result = CliRunner().invoke(app, ["work"])
    assert result.exit_code == 130
    assert result.stderr.startswith("lehr: stopped; the same command goes on")
