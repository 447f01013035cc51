from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.run_parts import PARTS, Outcome, Part, choose, main, run, run_all, table

PYTHON = Path(sys.executable).name
WORKS = Part(name="works", title="ends well", command=(PYTHON, "-c", "print('done')"))
FAILS = Part(name="fails", title="ends badly", command=(PYTHON, "-c", "raise SystemExit(3)"))


def test_parts_are_chosen_by_name_in_their_usual_order() -> None:
    assert {part.name for part in set(PARTS) - set(choose([]))} == {"quick", "whole"}
    first, second, *_ = PARTS
    assert choose([second.name, first.name]) == (first, second)
    with pytest.raises(SystemExit, match="nonsense"):
        choose(["nonsense"])


def test_every_test_is_run_by_default_or_at_full_size() -> None:
    commands = {part.name: " ".join(part.command) for part in PARTS if part.command[0] == "pytest"}
    assert commands["tests"].endswith("-m not whole tests src experiments docs README.md CONTRIBUTING.md")
    assert commands["whole"].endswith("-m whole tests")
    assert commands["quick"].endswith("-m not slow and not whole tests")


def test_one_failing_part_fails_the_whole_and_the_rest_still_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([], parts=(FAILS, WORKS)) == 1
    assert "done" in capfd.readouterr().out
    assert main(["works"], parts=(FAILS, WORKS)) == 0


def test_output_of_the_background_is_printed_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    command = (PYTHON, "-c", "print('heard'); exit(3)")
    aside = Part(name="aside", title="alone", command=command, in_background=True)
    outcomes = [(outcome.part.name, outcome.passed) for outcome in run_all((aside, WORKS))]
    assert outcomes == [("aside", False), ("works", True)]
    output = capfd.readouterr().out
    assert output.index("done") < output.index("=== aside: alone") < output.index("heard")


def test_the_table_has_a_row_for_each_part_and_for_all() -> None:
    outcomes = [Outcome(part=WORKS, passed=True, minutes=1.26), Outcome(part=FAILS, passed=False, minutes=0.5)]
    assert table(outcomes, minutes=1.3).splitlines() == [
        "part               | result | minutes",
        "-------------------------------------",
        "works (ends well)  | passed | 1.3",
        "fails (ends badly) | FAILED | 0.5",
        "together           | FAILED | 1.3",
    ]


def test_parts_keep_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    command = (PYTHON, "-c", "import sys; sys.exit(sys.dont_write_bytecode)")
    assert run(Part(name="keeps", title="modules", command=command)).passed
