from __future__ import annotations

import base64
import json
import math
import zlib
from dataclasses import replace

import plotly.offline
import pytest

from lehr.reports.chart import Chart, Line
from lehr.reports.page_frame import render
from tests.reports.pages import Page

EMPTY = "page_frame.html.jinja"
LARGEST = 2_200_000  # bytes of a page with a chart; pages of many runs are still within 5 MB then


def chart(*lines: Line) -> Chart:
    return Chart(
        element="curve",
        x_title="steps",
        y_title="loss",
        x_format=",d",
        y_format="",
        point="%{y}",
        has_markers=False,
        from_zero=True,
        lines=lines,
    )


@pytest.fixture(scope="module")
def page() -> str:
    lines = Line(name="a", x=[1, 2, 3], y=[0.5, math.nan, math.inf]), Line(name="<b>&", x=[1], y=[2.0])
    return render(EMPTY, charts=[chart(*lines)])


def test_a_page_asks_the_network_for_nothing(page: str) -> None:
    tags = Page(page).tags
    assert not any("src" in attributes or "href" in attributes for _, attributes in tags)
    [policy] = [str(a["content"]) for _, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_the_drawing_library_is_in_the_page_packed_and_whole(page: str) -> None:
    packed = Page(page).scripts[1]
    assert zlib.decompress(base64.b64decode(packed, validate=True)).decode() == plotly.offline.get_plotlyjs()
    assert len(page.encode()) < LARGEST


def test_what_is_not_finite_is_a_gap_and_names_are_escaped_for_the_drawing_library(page: str) -> None:
    [shape] = json.loads(Page(page).scripts[0])
    assert [line["y"] for line in shape["lines"]] == [[0.5, None, None], [2.0]]
    assert [line["name"] for line in shape["lines"]] == ["a", "&lt;b&gt;&amp;"]


def test_titles_of_axes_are_escaped_for_the_drawing_library() -> None:
    titled = replace(chart(), x_title="<a href='x'>", y_title="accuracy on <b>")
    [shape] = json.loads(Page(render(EMPTY, charts=[titled])).scripts[0])
    assert "<" not in shape["x_title"] + shape["y_title"]


def test_a_page_without_charts_has_no_script() -> None:
    assert Page(render(EMPTY, charts=[])).scripts == []


def test_a_line_may_be_broken_to_set_it_apart() -> None:
    lines = Line(name="a", x=[1], y=[1.0]), Line(name="b", x=[1], y=[1.0], dash="dash")
    [shape] = json.loads(Page(render(EMPTY, charts=[chart(*lines)])).scripts[0])
    assert [line["dash"] for line in shape["lines"]] == ["solid", "dash"]


def test_marks_notes_and_logarithmic_axes_reach_the_drawing_library() -> None:
    mark = Line(name="here", x=[2.0], y=[3.0], is_mark=True, notes=["<b>2"])
    [shape] = json.loads(Page(render(EMPTY, charts=[replace(chart(mark), x_scale="log", y_scale="log")])).scripts[0])
    assert (shape["x_scale"], shape["y_scale"]) == ("log", "log")
    assert (shape["lines"][0]["is_mark"], shape["lines"][0]["notes"]) == (True, ["&lt;b&gt;2"])


def test_areas_points_and_ticks_reach_the_drawing_library() -> None:
    lines = (
        Line(name="all", x=[1, 2, 1], y=[1.0, 2.0, 1.0], is_area=True),
        Line(name="p", x=[1], y=[1.0], is_scattered=True),
    )
    [shape] = json.loads(Page(render(EMPTY, charts=[replace(chart(*lines), x_ticks=(1.0, 2.0))])).scripts[0])
    assert [(line["is_area"], line["is_scattered"]) for line in shape["lines"]] == [(True, False), (False, True)]
    assert shape["x_ticks"] == [1.0, 2.0]
