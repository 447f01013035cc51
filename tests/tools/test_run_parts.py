from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.run_parts import PARTS, Outcome, Part, chosen, main, run, run_all, table

PYTHON = Path(sys.executable).name
WORKS = Part(word="works", says="ends well", command=(PYTHON, "-c", "print('done')"))
FAILS = Part(word="fails", says="ends badly", command=(PYTHON, "-c", "raise SystemExit(3)"))


def test_every_part_is_chosen_where_no_word_is_given_but_less_and_more_of_the_tests() -> None:
    assert {part.word for part in set(PARTS) - set(chosen([]))} == {"quick", "whole"}
    assert [part.word for part in chosen(["whole"])] == ["whole"]


def test_parts_are_chosen_by_word_and_kept_in_their_usual_order() -> None:
    first, second, *_ = PARTS
    assert chosen([second.word, first.word]) == (first, second)


def test_a_word_that_is_no_part_is_refused_with_those_there_are() -> None:
    with pytest.raises(SystemExit, match="no such part: nonsense; there are types, "):
        chosen(["nonsense"])


def test_every_test_is_run_by_default_or_at_full_size() -> None:
    commands = {part.word: " ".join(part.command) for part in PARTS if part.command[0] == "pytest"}
    assert commands["tests"].endswith("-m not whole tests src experiments docs README.md CONTRIBUTING.md")
    assert commands["whole"].endswith("-m whole tests")
    assert commands["quick"].endswith("-m not slow and not whole tests")


@pytest.mark.parametrize("part, passed", [(WORKS, True), (FAILS, False)])
def test_a_part_passes_exactly_when_its_command_does(part: Part, passed: bool) -> None:
    assert run(part).passed is passed


def test_one_failing_part_fails_the_whole_and_the_rest_still_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([], parts=(FAILS, WORKS)) == 1
    assert "done" in capfd.readouterr().out
    assert main(["works"], parts=(FAILS, WORKS)) == 0


def test_what_runs_beside_the_others_is_heard_when_they_are_through(capfd: pytest.CaptureFixture[str]) -> None:
    aside = Part(word="aside", says="alone", command=(PYTHON, "-c", "print('heard'); exit(3)"), beside=True)
    assert [(outcome.part.word, outcome.passed) for outcome in run_all((aside, WORKS))] == [
        ("aside", False),
        ("works", True),
    ]
    heard = capfd.readouterr().out
    assert heard.index("done") < heard.index("=== aside: alone") < heard.index("heard")


def test_the_table_has_a_row_of_result_and_minutes_for_each_part_and_for_all() -> None:
    outcomes = [Outcome(part=WORKS, passed=True, minutes=1.26), Outcome(part=FAILS, passed=False, minutes=0.5)]
    assert table(outcomes, minutes=1.3).splitlines() == [
        "part               | result | minutes",
        "-------------------------------------",
        "works (ends well)  | passed | 1.3",
        "fails (ends badly) | FAILED | 0.5",
        "together           | FAILED | 1.3",
    ]
