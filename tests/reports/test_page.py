"""Charts and the page builder. How pages look and behave in a browser: tests/browser."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import replace

import plotly.offline
import pytest

from lehr.reports.chart import MARK, Chart, Line, draw_in_terminal
from lehr.reports.page import (
    MOST_ROWS,
    Code,
    Facts,
    Page,
    Paragraph,
    Part,
    Section,
    Table,
    chart_numbers,
    note,
    render_page,
)
from tests.reports.pages import Page as Parsed
from tests.reports.pages import charts

LARGEST = 2_200_000  # bytes of a page with a chart
ATTACK = "</title></script><script>alert('x')</script><b onclick=y>{{ 7 * 7 }}"
CURVE = Line(name="ε", x=[36 * index for index in range(200)], y=[3 * math.sqrt(index / 199) for index in range(200)])
POINT = Line(name="a", x=[1], y=[1.0])


def chart(*lines: Line, **changed: object) -> Chart:
    made = Chart(element="curve", x_title="steps", y_title="loss", x_format=",d", lines=lines, note="a note")
    return replace(made, **changed)  # type: ignore[arg-type]


def page(*blocks: Section | Chart | Table | Facts) -> str:
    return render_page(Page(title="T", heading="H", introduction=[note("W")], blocks=blocks, footer="F"))


def test_page_is_one_file_with_plotly_and_without_network() -> None:
    text = page(chart(POINT))
    parsed = Parsed(text)
    assert not any("src" in attributes or "href" in attributes for _, attributes in parsed.tags)
    [policy] = [str(a["content"]) for _, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert zlib.decompress(base64.b64decode(parsed.scripts[1], validate=True)).decode() == plotly.offline.get_plotlyjs()
    assert len(text.encode()) < LARGEST
    assert {"curve", "curve-title"} <= {attributes.get("id") for _, attributes in parsed.tags}
    for words in ("loss against steps", "a note", "Numbers"):
        assert words in parsed.words


def test_page_without_charts_has_no_script_and_empty_blocks_are_left_out() -> None:
    parsed = Parsed(page(Table(title="Empty", headings=("a",), rows=[]), Facts(title="None", rows=[]), chart()))
    assert parsed.scripts == []
    assert "section" not in {tag for tag, _ in parsed.tags}


def test_chart_values_are_escaped_and_gaps_are_null() -> None:
    lines = Line(name="a", x=[1, 2, 3], y=[0.5, math.nan, math.inf]), Line(name="<b>&", x=[1], y=[2.0], notes=["<i>"])
    titled = chart(*lines, x_title="<a href='x'>", y_title="on <b>", x_ticks=(1.0,), x_labels=("<u>",))
    shape = charts(page(titled))["curve"]
    assert [line["y"] for line in shape["lines"]] == [[0.5, None, None], [2.0]]
    assert [line["name"] for line in shape["lines"]] == ["a", "&lt;b&gt;&amp;"]
    assert shape["lines"][1]["notes"] == ["&lt;i&gt;"]
    assert "<u>" not in shape["x_labels"]
    assert "<" not in (shape["x_title"] + shape["y_title"] + shape["point"]).replace("<br>", "")


def test_every_part_is_shown_as_text() -> None:
    table = Table(title=ATTACK, headings=(ATTACK,), rows=[(ATTACK,)], notes=[ATTACK])
    facts = Facts(rows=[(ATTACK, ATTACK), (ATTACK, [ATTACK])], title=ATTACK)
    cards = replace(table, style="cards", links=["/x"])
    parts: list[Part] = [Paragraph(ATTACK), note(ATTACK), facts, table, cards, Code(ATTACK)]
    text = page(Section(title=ATTACK, badge=ATTACK, parts=[*parts, chart(POINT, title=ATTACK)]))
    assert ATTACK not in text
    parsed = Parsed(text)
    assert "b" not in {tag for tag, _ in parsed.tags}
    assert len(parsed.scripts) == 3
    assert parsed.words.count("alert('x')") == parsed.words.count("{{ 7 * 7 }}") >= 14


def test_columns_of_numbers_are_aligned() -> None:
    rows = [("1", "+3.5%", "× 2", "12 s", "", "0.2 at δ", "98.3 ± 0.4 (2)"), ("2", "–", "1,000", "1", "3", "4", "5")]
    table = Table(title="T", headings=["a"] * 7, rows=rows)
    assert table.is_numeric == [False, True, True, True, True, False, True]


def test_chart_numbers() -> None:
    area = Line(name="likely", x=[1, 2], y=[1.0, 2.0], is_area=True)
    alone = chart_numbers(chart(Line(name="a", x=[1, 2_000], y=[0.123456789, math.nan]), area))
    assert (alone.headings, alone.rows) == (("steps", "loss"), [("1", "0.12346"), ("2,000", "–")])
    both = chart_numbers(chart(POINT, Line(name="b", x=[1], y=[0.25]), y_format=".0%"))
    assert (both.headings[0], both.rows) == ("line", [("a", "1", "100.00%"), ("b", "1", "25.00%")])
    assert chart_numbers(chart(Line(name="a", x=[3.9999401], y=[0.5]), x_title="ε spent")).rows[0][0] == "4"  # up
    assert chart_numbers(chart(POINT, x_ticks=(1.0,), x_labels=("sgd",))).rows[0][0] == "sgd"
    long = chart_numbers(chart(Line(name="a", x=range(5000), y=[0.5] * 5000))).rows
    assert len(long) <= MOST_ROWS
    assert (long[0][0], long[-1][0]) == ("0", "4,999")


@pytest.mark.parametrize("width", [10, 40, 80, 200])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_terminal_chart_fits_and_has_no_colour_codes(width: int, scale: str) -> None:
    line = CURVE if scale == "linear" else Line(name="a", x=[0.5, 1.0, 8.0], y=[9.0, 3.0, 1.0])
    drawing = draw_in_terminal(chart(line, x_scale=scale), width=width)
    assert max(map(len, drawing.splitlines())) <= max(width, 40)
    assert "\x1b" not in drawing


def test_terminal_chart_has_titles_round_numbers_and_a_rising_curve() -> None:
    drawing = draw_in_terminal(chart(CURVE, y_title="ε"), width=80)
    for words in ("ε against steps", "2,000", "4,000", "6,000", "1┤", "2┤", "3┤"):
        assert words in drawing
    columns = [line.split("│")[1] for line in drawing.splitlines() if line.count("│") == 2]
    assert columns[0].rstrip() != columns[0].strip()  # the top row is filled at its right end only
    assert len(columns[-1].rstrip()) < 5
    draw_in_terminal(chart(Line(name="b", x=[0, 5], y=[0.0, 99.0])), width=60)
    assert draw_in_terminal(chart(CURVE, y_title="ε"), width=80) == drawing  # nothing of another chart is left


def test_terminal_chart_has_marks_a_legend_and_a_top() -> None:
    mark = Line(name="here", x=[2.0], y=[2.0], is_mark=True)
    line = Line(name="a", x=[1.0, 2.0, 4.0], y=[1000.0, 2.0, 1.0])
    *drawing, legend = draw_in_terminal(chart(line, mark, x_scale="log"), width=80, top=4.0).splitlines()
    assert sum(row.count(MARK) for row in drawing) == 1
    assert legend == f" {MARK} here"
    assert "1000" not in "".join(drawing)


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.00037, 123456.0, math.inf])
@pytest.mark.parametrize("steps", [1, 10_000_000])
def test_any_scale_can_be_drawn(value: float, steps: int) -> None:
    drawing = draw_in_terminal(chart(Line(name="a", x=[0, steps], y=[0.0, value])), width=80)
    assert drawing.startswith("No chart") == (value in (0.0, math.inf))
