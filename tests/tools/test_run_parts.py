from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.run_parts import PARTS, Outcome, Part, chosen, main, run, table

PYTHON = Path(sys.executable).name
WORKS = Part(word="works", says="ends well", command=(PYTHON, "-c", "print('done')"))
FAILS = Part(word="fails", says="ends badly", command=(PYTHON, "-c", "raise SystemExit(3)"))


def test_every_part_is_chosen_where_no_word_is_given_but_the_one_that_takes_longest() -> None:
    [left_out] = set(PARTS) - set(chosen([]))
    assert left_out.word == "whole"
    assert chosen(["whole"]) == (left_out,)


def test_parts_are_chosen_by_word_and_kept_in_their_usual_order() -> None:
    first, second, *_ = PARTS
    assert chosen([second.word, first.word]) == (first, second)


def test_a_word_that_is_no_part_is_refused_with_those_there_are() -> None:
    with pytest.raises(SystemExit, match="no such part: nonsense; there are style, "):
        chosen(["nonsense"])


def test_every_test_belongs_to_exactly_one_part() -> None:
    commands = {part.word: " ".join(part.command) for part in PARTS if part.command[0] == "pytest"}
    assert "-m not slow and not whole" in commands["tests"]
    assert "-m slow" in commands["slow"]
    assert "-m whole" in commands["whole"]
    assert "-m" not in commands["examples"]


@pytest.mark.parametrize("part, passed", [(WORKS, True), (FAILS, False)])
def test_a_part_passes_exactly_when_its_command_does(part: Part, passed: bool) -> None:
    assert run(part).passed is passed


def test_one_failing_part_fails_the_whole_and_the_rest_still_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main([], parts=(FAILS, WORKS)) == 1
    assert "done" in capfd.readouterr().out
    assert main(["works"], parts=(FAILS, WORKS)) == 0


def test_the_table_has_a_row_of_result_and_minutes_for_each_part_and_their_sum() -> None:
    outcomes = [Outcome(part=WORKS, passed=True, minutes=1.26), Outcome(part=FAILS, passed=False, minutes=0.5)]
    assert table(outcomes).splitlines() == [
        "part               | result | minutes",
        "-------------------------------------",
        "works (ends well)  | passed | 1.3",
        "fails (ends badly) | FAILED | 0.5",
        "together           | FAILED | 1.8",
    ]
