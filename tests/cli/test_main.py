from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import Result

import lehr as package

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


def _fresh(*arguments: str, script: str = SAY_WHAT_IS_LOADED, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin", **environment}, check=False)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("plan", "--help"), ("budget", "show", "--help")])
def test_help_loads_nothing_that_counts(arguments: tuple[str, ...]) -> None:
    result = _fresh(*arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("loaded:\n")


def test_a_command_does_load_what_counts() -> None:
    assert "numpy" in _fresh(*ACCOUNT).stdout.rpartition("loaded:")[2]


def test_the_version_is_that_of_the_package(lehr: Callable[..., Result]) -> None:
    assert lehr("--version").stdout == f"lehr {package.__version__}\n"


def test_no_command_shows_the_help(lehr: Callable[..., Result]) -> None:
    assert lehr().stdout == lehr("--help").stdout
    shown = " ".join(lehr().stdout.split())
    assert "Exit codes: 0 done; 1 the answer is no" in shown
    assert "130 interrupted" in shown


def test_a_refusal_in_a_fresh_process_is_one_line_and_a_code() -> None:
    result = _fresh("account", "--steps", "-3", script="from lehr.cli.main import main; main()")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("lehr: noise_multiplier must be given")
    assert result.stderr.count("\n") == 1


def test_a_terminal_without_greek_still_shows_the_number() -> None:
    script = "from lehr.cli.main import main; main()"
    result = _fresh(*ACCOUNT, script=script, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr
    assert "? at ? = 1e-05" in result.stdout


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_answer_that_cannot_be_written_is_one_line_and_a_code(more: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", "from lehr.cli.main import main; main()", *ACCOUNT, *more]
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr == "lehr: cannot write the answer: No space left on device\n"
