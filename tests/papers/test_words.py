from __future__ import annotations

import math

import pytest

from lehr.errors import InvalidValue
from lehr.papers.table import Cell, Column, Measured, Shown, Table
from lehr.papers.words import cell_words, headings, labelled, markdown, to_json, with_remarks
from lehr.reports.chart import Chart, Line

LONG = "scored on the records that acceptance looked at"
TABLE = Table(
    title="Accuracies",
    columns=(Column(title="method"), Column(title="ours", kind="percent"), Column(title="what differs")),
    rows=(("DPSGD", Measured((0.98, 0.99)), "a | b"), ("SA-DPSGD", None, LONG), ("other", 0.5, LONG)),
    notes=("A note.",),
)


@pytest.mark.parametrize(
    "cell, column, words",
    [
        (None, Column(title="", kind="percent"), "–"),
        ("words", Column(title="", kind="epsilon"), "words"),
        (0.98314, Column(title="", kind="percent"), "98.31"),
        (2.36011, Column(title="", kind="epsilon"), "2.37"),
        (2.93, Column(title="", kind="epsilon"), "2.93"),
        (math.inf, Column(title="", kind="epsilon"), "∞"),
        (4698, Column(title="", kind="count"), "4,698"),
        (0.05, Column(title="", kind="number", digits=3), "0.050"),
        (512.0, Column(title=""), "512"),
        (Measured(()), Column(title="", kind="percent"), "–"),
        (Measured((0.5,)), Column(title="", kind="percent", digits=1), "50.0 (1)"),
        (Measured((2.001, 2.003)), Column(title="", kind="epsilon"), "2.01 ± 0.00 (2)"),
    ],
)
def test_a_cell_is_written_by_the_kind_of_its_column(cell: Cell, column: Column, words: str) -> None:
    assert cell_words(cell, column) == words


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidValue, match="kind"):
        cell_words(0.5, Column(title="", kind="percents"))


def test_markdown_has_every_row_and_no_cell_breaks_out_of_its_column() -> None:
    assert markdown(TABLE).splitlines()[:3] == [
        "| method | ours (%) | what differs |",
        "| :-- | --: | :-- |",
        "| DPSGD | 98.50 ± 0.71 (2) | a \\| b |",
    ]
    assert markdown(TABLE).endswith("\n\nA note.")


def test_on_a_terminal_long_texts_stand_below_once() -> None:
    rows, remarks = with_remarks(TABLE)
    assert [row[2] for row in rows] == ["a | b", "[1]", "[1]"]
    assert remarks == [f"[1] {LONG}"]
    assert headings(TABLE) == ["method", "ours (%)", "what differs"]


def test_what_is_quick_says_so_in_every_title_once() -> None:
    shown = Shown(tables=(TABLE, Table(title="Quick. Losses", columns=(), rows=())))
    assert labelled(shown, is_quick=False) == shown
    titles = [table.title for table in labelled(shown, is_quick=True).tables]
    assert titles[0].startswith("Accuracies (quick:")
    assert titles[1] == "Quick. Losses"


def test_programs_get_the_numbers_themselves() -> None:
    line = Line(name="one", x=[1.0, 2.0], y=[0.5, math.nan])
    chart = Chart(
        element="a", x_title="x", y_title="y", x_format="", y_format="", point="", has_markers=True, from_zero=False,
        lines=(line,),
    )  # fmt: skip
    shape = to_json(Shown(tables=(TABLE,), charts=(chart,)))
    assert shape["tables"][0]["rows"][0][1]["values"] == [0.98, 0.99]
    assert shape["tables"][0]["rows"][1][1] is None
    assert shape["charts"][0]["lines"] == [{"name": "one", "x": [1.0, 2.0], "y": [0.5, None]}]
