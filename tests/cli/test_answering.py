from __future__ import annotations

import json
import math
import re

import pytest

from lehr.cli import answering


def test_json_is_one_object_with_infinity_as_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    answering.as_json({"epsilon": math.inf, "steps": 3})
    assert json.loads(capsys.readouterr().out) == {"epsilon": "infinity", "steps": 3}


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_tables_fit_the_terminal_and_lose_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    reason = "a reason of many words " * 10
    answering.listing("Title", ("accountant", "why"), [("pld", reason)])
    answering.facts("Title", {"name": reason})
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= int(columns)
    assert out.count("reason") == 20


def test_cells_are_text_and_not_markup_or_codes(capsys: pytest.CaptureFixture[str]) -> None:
    answering.facts("Title", {"run": "[red]one[/red] :smile: \x1b[31m"})
    out = capsys.readouterr().out
    assert "[red]one[/red] :smile:" in out
    assert "\x1b" not in out


def test_there_is_no_colour_even_on_a_terminal_that_has_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    answering.facts("Title", {"name": "3.0"})
    out = capsys.readouterr().out
    assert "\x1b[1m" in out  # a title may be bold
    assert not re.search("\x1b\\[[34]", out)


def test_nothing_but_what_is_printable_is_printed() -> None:
    assert answering.printable("ε ≤ 3\x1b[2J\n\u202e") == "ε ≤ 3\\x1b[2J\\n\\u202e"


def test_without_a_person_looking_there_is_no_spinner(capsys: pytest.CaptureFixture[str]) -> None:
    with answering.working("Counting"):
        pass
    assert capsys.readouterr() == ("", "")


def test_no_word_of_a_table_is_broken_and_numbers_stand_on_one_line_before_texts_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "48")
    headings = ("method", "ours (%)", "candidates drawn", "what differs")
    rows = [("a method with quite a long name", "91.29 ± 1.70 (2)", "260", "[1]")]
    answering.numbers("A table", headings, rows, is_number=(False, True, True, False))
    told = capsys.readouterr().out
    assert all(word in told for word in ("91.29 ± 1.70 (2)", "candidates", "differs", "method"))
    assert max(map(len, told.splitlines())) <= 48
