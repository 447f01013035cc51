"""What all commands share: the overview, output, exit codes, and values given with --set."""

from __future__ import annotations

import io
import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import lehr as package
from lehr.cli import common
from lehr.cli.common import Commands, exit_code, parse_settings, resumable
from lehr.cli.main import COMMANDS, main
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
from tests.cli.conftest import Run

HEAVY = ("numpy", "scipy", "plotly", "plotext", "dp_accounting", "torch", "jinja2")
SAY_WHAT_IS_LOADED = f"""
import sys
sys.argv = ["lehr", *sys.argv[1:]]
from lehr.cli.main import main
try:
    main()
finally:
    print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules])
"""
ACCOUNT = ("account", "--noise-multiplier", "2", "--sampling-probability", "0.01", "--steps", "10", "--delta", "1e-5")


def test_overview_lists_every_command_and_loads_nothing_heavy(lehr: Run) -> None:
    command = [sys.executable, "-c", SAY_WHAT_IS_LOADED, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("loaded:\n")
    shown = lehr().stdout
    assert shown == lehr("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in shown
        lehr(name, "--help")
    for code in ("0 success", "1 the answer is no", "4 an audit refutes a claim", "130 interrupted"):
        assert code in " ".join(shown.split())
    assert lehr("--version").stdout == f"lehr {package.__version__}\n"


def test_terminal_without_greek_still_shows_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["lehr", *ACCOUNT])
    with pytest.raises(SystemExit) as left:
        main()
    sys.stdout.flush()
    assert left.value.code == 0
    assert b"? at ? = 1e-05" in shown.getvalue()


def test_full_disk_is_one_line_and_a_code() -> None:
    command = [sys.executable, "-c", "from lehr.cli.main import main; main()", "--help"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr == "lehr: cannot write the answer: No space left on device\n"


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


def test_cells_are_text_without_markup_codes_or_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    common.print_facts("Title", {"run": "[red]one[/red] :smile: \x1b[31m 3.0"})
    out = capsys.readouterr().out
    assert "[red]one[/red] :smile: \\x1b[31m 3.0" in out
    assert "\x1b[1m" in out  # a title may be bold
    assert not re.search("\x1b\\[[34]", out)
    assert common.printable("ε ≤ 3\x1b[2J\n\u202e") == "ε ≤ 3\\x1b[2J\\n\\u202e"


def _failing_with(error: BaseException, *arguments: str) -> Result:
    app = typer.Typer(cls=Commands)

    @app.command()
    def fail(json: bool = False) -> None:
        with common.working("Counting"), resumable():
            raise error

    @app.command()
    def succeed() -> None:
        pass

    return CliRunner().invoke(app, ["fail", *arguments])


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
def test_error_has_its_exit_code_and_one_line(code: int, error: Exception) -> None:
    assert exit_code(error) == code
    result = _failing_with(error)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("lehr: ")
    assert result.stderr.count("\n") == 1
    shape = json.loads(_failing_with(error, "--json").stdout)["error"]
    assert (shape["kind"], shape["exit_code"]) == (type(error).__name__, code)


@pytest.mark.parametrize(
    "error, code, line",
    [
        (
            PermissionError(13, "Permission denied", "closed/plan.json"),
            3,
            "cannot use closed/plan.json: Permission denied",
        ),
        (OSError(28, "No space left on device"), 3, "cannot write the answer: No space left on device"),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogate"), 2, "text must be UTF-8; given: 'other bytes'"),
        (KeyboardInterrupt(), 130, "stopped; the same command goes on from here"),
    ],
)
def test_error_of_the_system_is_one_line_and_a_code(error: BaseException, code: int, line: str) -> None:
    result = _failing_with(error)
    assert (result.exit_code, result.stderr.strip()) == (code, f"lehr: {line}")


def test_programming_error_is_not_hidden() -> None:
    assert isinstance(_failing_with(ZeroDivisionError()).exception, ZeroDivisionError)


def test_message_cannot_move_the_cursor_or_fill_the_screen() -> None:
    result = _failing_with(LehrError("\x1b[2J\x07 two\nlines " + "x" * 5000))
    assert "\x1b" not in result.stderr
    assert "\x07" not in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 1100


@pytest.mark.parametrize(
    "setting, table, key, value",
    [
        ("salvage=true", "method", "salvage", True),
        ("rejection_threshold=4", "method", "rejection_threshold", 4),
        ("learning_rate=1e-3", "method", "learning_rate", 1e-3),
        ("lr=1e-3", "method", "learning_rate", 1e-3),
        ("cooling=classic", "method", "cooling", "classic"),
        ('cooling="classic"', "method", "cooling", "classic"),
        ("step_scales=[0.5, 1.0]", "method", "step_scales", [0.5, 1.0]),
        ("schedule={kind='constant'}", "method", "schedule", {"kind": "constant"}),
        ("views=2", "training", "views", 2),
        ("training.views=2", "training", "views", 2),
        ("model.activation=tempered_sigmoid(1, 2)", "model", "activation", "tempered_sigmoid(1, 2)"),
        ("privacy.sampling=without-replacement", "privacy", "sampling", "without-replacement"),
    ],
)
def test_setting_is_read_as_in_a_file(setting: str, table: str, key: str, value: Any) -> None:
    assert parse_settings([setting]) == {table: {key: value}}
    assert type(parse_settings([setting])[table][key]) is type(value)


@pytest.mark.parametrize(
    "given",
    [["views"], ["=3"], ["a.b.c=3"], ["views="], ["views=[1"], ["views=1\nother=2"], ["views=1", "views=2"], ["x={"]],
    ids=str,
)
def test_malformed_setting_is_refused(given: list[str]) -> None:
    with pytest.raises(InvalidValue, match="set must be"):
        parse_settings(given)
