from __future__ import annotations

import math
from dataclasses import replace

import pytest

from experiments.experiment import Cell, Column, Experiment, Report, Statistic, Table
from experiments.page import Part, cell_words, headings, markdown, render, to_json, with_remarks
from lehr.reports.chart import Chart, Line
from tests.reports.pages import Page

LONG = "scored on the records that acceptance looked at"
TABLE = Table(
    title="Accuracies",
    columns=(Column(title="method"), Column(title="ours", kind="percent"), Column(title="what differs")),
    rows=(("DPSGD", Statistic((0.98, 0.99)), "a | b"), ("SA-DPSGD", None, LONG), ("other", 0.5, LONG)),
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
        (Statistic(()), Column(title="", kind="percent"), "–"),
        (Statistic((0.5,)), Column(title="", kind="percent", digits=1), "50.0 (1)"),
        (Statistic((2.001, 2.003)), Column(title="", kind="epsilon"), "2.01 ± 0.00 (2)"),
    ],
)
def test_a_cell_is_written_by_the_kind_of_its_column(cell: Cell, column: Column, words: str) -> None:
    assert cell_words(cell, column) == words


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


def test_programs_get_the_numbers_themselves() -> None:
    line = Line(name="one", x=[1.0, 2.0], y=[0.5, math.nan])
    chart = Chart(
        element="a", x_title="x", y_title="y", x_format="", y_format="", point="", has_markers=True, from_zero=False,
        lines=(line,),
    )  # fmt: skip
    shape = to_json(Report(tables=(TABLE,), charts=(chart,)))
    assert shape["tables"][0]["rows"][0][1]["values"] == [0.98, 0.99]
    assert shape["tables"][0]["rows"][1][1] is None
    assert shape["charts"][0]["lines"] == [{"name": "one", "x": [1.0, 2.0], "y": [0.5, None]}]


TABLE_PAGE = Table(
    title="Accuracies <b>",
    columns=(Column(title="method"), Column(title="ours", kind="percent")),
    rows=(("<script>", Statistic((0.98, 0.99))), ("other", None)),
)
CHART = Chart(
    element="accuracy",
    x_title="ε",
    y_title="accuracy",
    x_format=".2f",
    y_format=".1%",
    point="%{y}",
    has_markers=False,
    from_zero=False,
    lines=(Line(name="DPSGD", x=[1.0, 2.0], y=[0.5, 0.75]), Line(name="AUTO-S", x=[1.0, 2.0], y=[0.6, 0.7])),
)
TABLE_ONE = Experiment(
    paper="a",
    name="table1",
    title="A table",
    about="What it is about.",
    report=lambda outcomes, size: Report(),
)
PART = Part(experiment=TABLE_ONE, report=Report(tables=(TABLE_PAGE,), charts=(CHART, CHART)), done=2, jobs=3)


def test_a_page_has_its_tables_charts_and_how_far_it_is_and_nothing_in_it_becomes_code() -> None:
    page = Page(render([PART], title="A paper", is_quick=False))
    assert "98.50 ± 0.71 (2)" in page.words
    assert "2 of 3 runs are done" in page.words
    assert "<script>" in page.words
    assert {"table1-1", "table1-2"} <= {attributes.get("id") for _, attributes in page.tags}
    assert "Quick" not in page.words


def test_several_parts_have_a_way_to_each_and_no_element_twice() -> None:
    other = replace(PART, experiment=replace(TABLE_ONE, name="figure2"))
    page = Page(render([PART, other], title="A paper", is_quick=False))
    assert {"#table1", "#figure2"} <= {attributes.get("href") for _, attributes in page.tags}
    elements = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(elements)) == len(elements)
