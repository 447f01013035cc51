from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer.main
from typer.testing import Result

import lehr as package
from lehr.cli.main import COMMANDS, app, main

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


def test_the_overview_loads_nothing_heavy() -> None:
    command = [sys.executable, "-c", SAY_WHAT_IS_LOADED, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("loaded:\n")


def test_the_overview_names_every_command_and_each_is_there() -> None:
    overview = typer.main.get_command(app)
    assert [overview.commands[name].name for name in COMMANDS] == [*COMMANDS]  # type: ignore[attr-defined]


def test_the_version_is_that_of_the_package(lehr: Callable[..., Result]) -> None:
    assert lehr("--version").stdout == f"lehr {package.__version__}\n"


def test_no_command_shows_the_help_with_the_exit_codes(lehr: Callable[..., Result]) -> None:
    assert lehr().stdout == lehr("--help").stdout
    shown = " ".join(lehr().stdout.split())
    for code in ("0 success", "1 the answer is no", "4 an audit refutes a claim", "130 interrupted"):
        assert code in shown


def test_a_terminal_without_greek_still_shows_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["lehr", *ACCOUNT])
    with pytest.raises(SystemExit) as left:
        main()
    sys.stdout.flush()
    assert left.value.code == 0
    assert b"? at ? = 1e-05" in shown.getvalue()


def test_an_answer_that_cannot_be_written_is_one_line_and_a_code() -> None:
    command = [sys.executable, "-c", "from lehr.cli.main import main; main()", *ACCOUNT, "--json"]
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr == "lehr: cannot write the answer: No space left on device\n"
