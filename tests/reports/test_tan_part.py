from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lehr.planning.plan import Plan
from lehr.reports.curve import Point
from lehr.reports.plan_page import render
from lehr.reports.tan_part import part
from tests.reports.outlooks import BEHIND, CLEAR, FULL, of
from tests.reports.pages import Page

POINTS = (Point(0, 0.0), Point(100, 1.0))


def page_of(plan: Plan) -> Page:
    return Page(render(plan, bound=plan.bound(), claim=plan.claim(), points=POINTS, outlook=of(plan)))


@pytest.fixture(scope="module")
def page() -> Page:
    return page_of(BEHIND)


def test_both_figures_are_on_the_page_with_the_plan_marked(page: Page) -> None:
    steps, constant, ratio = json.loads(page.scripts[0])
    assert [chart["element"] for chart in (steps, constant, ratio)] == ["curve", "constant-eta", "divergence-ratio"]
    drawn_in = {attributes.get("id") for _, attributes in page.tags}
    assert {"curve", "constant-eta", "divergence-ratio"} <= drawn_in
    [mark] = [line for line in constant["lines"] if line["is_mark"]]
    assert (mark["x"], mark["y"]) == ([BEHIND.noise_multiplier], [BEHIND.bound().epsilon])
    [decides] = [line for line in ratio["lines"] if line["is_mark"]]
    [own] = [line for line in ratio["lines"] if line["name"] == "σ = 0.9, your plan"]
    assert own["y"][own["x"].index(decides["x"][0])] == decides["y"][0]


def test_every_point_of_the_figures_says_what_it_is() -> None:
    for chart in part(of(CLEAR)).charts:
        assert chart.point == "%{text}"
        assert all(len(line.notes) == len(line.x) == len(line.y) for line in chart.lines)


def test_the_curves_are_the_tight_ones_beside_the_papers_accountant_the_wall_and_two_levels() -> None:
    seen = of(CLEAR)
    lines = {line.name: line for line in part(seen).charts[0].lines}
    own = next(curve for curve in seen.curves if curve.is_of_plan)
    assert list(lines["100 steps"].y) == [point.epsilon for point in own.points]
    assert list(lines["100 steps by rdp-balle20, as in the paper"].y) == [point.epsilon_balle20 for point in own.points]
    assert set(lines["privacy wall"].x) == {seen.standing.wall}
    assert set(lines["least ε at this η"].y) == {seen.standing.epsilon_limit}
    assert set(lines["from η alone, an estimate, not a guarantee"].y) == {seen.standing.epsilon_estimate}


def test_tables_and_sentences_are_in_the_words(page: Page) -> None:
    said = part(of(BEHIND))
    for sentence in said.sentences:
        assert sentence in page.words
    for table in said.tables:
        assert table.title in page.words
    assert "not a guarantee" in page.words


def test_an_outlook_without_figures_makes_a_page_without_them() -> None:
    bare = part(replace(of(FULL), curves=(), ratio_curves=()))
    assert bare.charts == ()
    assert bare.tables


def test_a_page_without_an_outlook_says_nothing_of_it() -> None:
    page = render(CLEAR, bound=CLEAR.bound(), claim=CLEAR.claim(), points=POINTS)
    assert "total amount of noise" not in Page(page).words
