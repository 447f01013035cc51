"""The page builder. How its pages look and behave in a browser: tests/browser."""

from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import replace

import plotly.offline

from lehr.reports.chart import Chart, Line
from lehr.reports.page import Code, Facts, Page, Paragraph, Part, Section, Table, figure, note, render_page, warning
from tests.reports.pages import Page as Parsed
from tests.reports.pages import charts

LARGEST = 2_200_000  # bytes of a page with a chart
ATTACK = "</title></script><script>alert('x')</script><b onclick=y>{{ 7 * 7 }}"


def chart(*lines: Line) -> Chart:
    return Chart(element="curve", x_title="steps", y_title="loss", x_format=",d", lines=lines, note="a note")


def page(*blocks: Section) -> str:
    return render_page(Page(title="T", heading="H", introduction=[warning("W")], blocks=blocks, footer="F"))


def test_a_page_is_one_file_that_asks_the_network_for_nothing_and_has_plotly_inside() -> None:
    text = page(figure(chart(Line(name="a", x=[1], y=[1.0]))))
    parsed = Parsed(text)
    assert not any("src" in attributes or "href" in attributes for _, attributes in parsed.tags)
    [policy] = [str(a["content"]) for _, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")
    assert zlib.decompress(base64.b64decode(parsed.scripts[1], validate=True)).decode() == plotly.offline.get_plotlyjs()
    assert len(text.encode()) < LARGEST


def test_values_reach_the_drawing_library_escaped_and_gaps_are_null() -> None:
    lines = Line(name="a", x=[1, 2, 3], y=[0.5, math.nan, math.inf]), Line(name="<b>&", x=[1], y=[2.0], notes=["<i>"])
    titled = replace(chart(*lines), x_title="<a href='x'>", y_title="on <b>", x_scale="log", x_ticks=(1.0, 2.0))
    shape = charts(page(figure(titled)))["curve"]
    assert [line["y"] for line in shape["lines"]] == [[0.5, None, None], [2.0]]
    assert [line["name"] for line in shape["lines"]] == ["a", "&lt;b&gt;&amp;"]
    assert shape["lines"][1]["notes"] == ["&lt;i&gt;"]
    assert "<" not in shape["x_title"] + shape["y_title"]
    assert (shape["x_scale"], shape["x_ticks"]) == ("log", [1.0, 2.0])


def test_a_page_without_charts_has_no_script() -> None:
    assert Parsed(page(Section(title="S", parts=[Paragraph("P")]))).scripts == []


def test_every_part_is_shown_as_text_and_nothing_else() -> None:
    table = Table(title=ATTACK, headings=(ATTACK,), rows=[(ATTACK,)], notes=[ATTACK], has_heading=True)
    cards = replace(table, style="cards", links=["/x"], row_classes=["a"], keys=["k"], fields=["f"])
    facts = Facts(rows=[(ATTACK, ATTACK), (ATTACK, [ATTACK])], title=ATTACK)
    parts: list[Part] = [
        Paragraph(ATTACK),
        note(ATTACK),
        facts,
        table,
        cards,
        Code(ATTACK),
        replace(chart(), title=ATTACK),
    ]
    text = page(Section(title=ATTACK, badge=ATTACK, parts=parts))
    assert ATTACK not in text
    parsed = Parsed(text)
    assert "b" not in {tag for tag, _ in parsed.tags}
    assert len(parsed.scripts) == 3
    assert parsed.words.count("alert('x')") == parsed.words.count("{{ 7 * 7 }}") >= 14


def test_a_chart_has_a_title_a_note_and_its_numbers_as_a_table() -> None:
    parsed = Parsed(page(figure(chart(Line(name="a", x=[1], y=[1.0])))))
    assert {"curve", "curve-title"} <= {attributes.get("id") for _, attributes in parsed.tags}
    assert sum(tag == "details" for tag, _ in parsed.tags) == 1
    for words in ("loss against steps", "a note", "The numbers"):
        assert words in parsed.words
    assert json.loads(parsed.scripts[0])[0]["note"] == "a note"
