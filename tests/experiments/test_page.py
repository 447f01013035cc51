from __future__ import annotations

import math
from dataclasses import replace

import pytest

from experiments.experiment import Cell, Column, Experiment, Report, Statistic, table
from experiments.page import Part, cell_words, headings, markdown, render, rows_and_remarks, to_json
from lehr.reports.chart import Chart, Line
from tests.reports.pages import Page

LONG = "scored on the records that acceptance looked at"
TABLE = table(
    "Accuracies <b>",
    "method | ours [percent] | what differs",
    (("<script>", Statistic((0.98, 0.99)), "a | b"), ("SA-DPSGD", None, LONG), ("other", 0.5, LONG)),
    "A note.",
)
CHART = Chart(
    element="accuracy",
    x_title="ε",
    y_title="accuracy",
    y_format=".1%",
    lines=(Line(name="DPSGD", x=[1.0, 2.0], y=[0.5, 0.75]), Line(name="AUTO-S", x=[1.0, 2.0], y=[0.6, 0.7])),
)
EXPERIMENT = Experiment(
    paper="a", name="table1", title="A table", about="What it is about.", report=lambda outcomes, size: Report()
)
PART = Part(experiment=EXPERIMENT, report=Report(tables=(TABLE,), charts=(CHART, CHART)), done=2, jobs=3)


@pytest.mark.parametrize(
    "cell, kind, digits, words",
    [
        (None, "percent", 2, "–"),
        ("words", "epsilon", 2, "words"),
        (0.98314, "percent", 2, "98.31"),
        (2.36011, "epsilon", 2, "2.37"),
        (2.93, "epsilon", 2, "2.93"),
        (math.inf, "epsilon", 2, "∞"),
        (4698, "count", 2, "4,698"),
        (0.05, "number", 3, "0.050"),
        (512.0, "text", 2, "512"),
        (Statistic(()), "percent", 2, "–"),
        (Statistic((0.5,)), "percent", 1, "50.0 (1)"),
        (Statistic((2.001, 2.003)), "epsilon", 2, "2.01 ± 0.00 (2)"),
    ],
)
def test_a_cell_is_written_by_the_kind_of_its_column(cell: Cell, kind: str, digits: int, words: str) -> None:
    assert cell_words(cell, Column(title="", kind=kind, digits=digits)) == words


def test_markdown_escapes_bars() -> None:
    assert markdown(TABLE).splitlines()[:3] == [
        "| method | ours (%) | what differs |",
        "| :-- | --: | :-- |",
        "| <script> | 98.50 ± 0.71 (2) | a \\| b |",
    ]
    assert markdown(TABLE).endswith("\n\nA note.")


def test_on_a_terminal_long_texts_stand_below_once() -> None:
    rows, remarks = rows_and_remarks(TABLE)
    assert [row[2] for row in rows] == ["a | b", "[1]", "[1]"]
    assert remarks == [f"[1] {LONG}"]
    assert headings(TABLE) == ["method", "ours (%)", "what differs"]


def test_json_has_unrounded_numbers() -> None:
    gap = replace(CHART, lines=(Line(name="DPSGD", x=[1.0, 2.0], y=[0.5, math.nan]),))
    shape = to_json(replace(PART.report, charts=(gap,)))
    assert shape["tables"][0]["rows"][0][1]["values"] == [0.98, 0.99]
    assert shape["tables"][0]["rows"][1][1] is None
    assert shape["charts"][0]["lines"][0] == {"name": "DPSGD", "x": [1.0, 2.0], "y": [0.5, None]}


def test_a_page_has_tables_and_charts_and_nothing_in_it_becomes_code() -> None:
    other = replace(PART, experiment=replace(EXPERIMENT, name="figure2"))
    page = Page(render([PART, other], title="A paper", is_quick=False))
    for words in ("98.50 ± 0.71 (2)", "2 of 3 runs are done", "<script>"):
        assert words in page.words
    assert "Quick" not in page.words
    elements = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(elements)) == len(elements)
    assert {"table1-1", "table1-2", "figure2-1"} <= set(elements)
    assert {"#table1", "#figure2"} <= {attributes.get("href") for _, attributes in page.tags}
