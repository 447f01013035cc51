from __future__ import annotations

from dataclasses import replace

from lehr.papers.experiment import Experiment
from lehr.papers.page import Part, render
from lehr.papers.table import Column, Measured, Shown, Table
from lehr.reports.chart import Chart, Line
from tests.reports.pages import Page

TABLE = Table(
    title="Accuracies <b>",
    columns=(Column(title="method"), Column(title="ours", kind="percent")),
    rows=(("<script>", Measured((0.98, 0.99))), ("other", None)),
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
    jobs=lambda size: [],
    shown=lambda outcomes, size: Shown(),
)
PART = Part(experiment=TABLE_ONE, shown=Shown(tables=(TABLE,), charts=(CHART, CHART)), done=2, jobs=3)


def test_a_page_has_its_tables_charts_and_how_far_it_is_and_nothing_in_it_becomes_code() -> None:
    page = Page(render([PART], title="A paper", is_quick=False))
    assert "98.50 ± 0.71 (2)" in page.words
    assert "2 of 3 runs are done" in page.words
    assert "<script>" in page.words
    assert {"table1-1", "table1-2"} <= {attributes.get("id") for _, attributes in page.tags}
    assert "Quick" not in page.words


def test_a_quick_page_says_so_first() -> None:
    page = Page(render([PART], title="A paper", is_quick=True))
    assert page.words.index("Nothing here reproduces the paper") < page.words.index("Accuracies")


def test_several_parts_have_a_way_to_each_and_no_element_twice() -> None:
    other = replace(PART, experiment=replace(TABLE_ONE, name="figure2"))
    page = Page(render([PART, other], title="A paper", is_quick=False))
    assert {"#table1", "#figure2"} <= {attributes.get("href") for _, attributes in page.tags}
    elements = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(elements)) == len(elements)
