from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner, Result

from lehr.cli.failing import Commands, exit_code
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
