from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from lehr.accounting import Answer
from lehr.planning.plan import Plan
from lehr.reports.plan_page import (
    POINTS,
    draw_constant_eta,
    epsilon_chart,
    noise_text,
    render,
    tan_charts,
    tan_facts,
    tan_tables,
)
from lehr.rounding import at_most
from tests.reports.outlooks import BEHIND, CLEAR, FULL, of
from tests.reports.pages import Page, chart_lines, charts

PLAN = Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=500, delta=1e-5)


def page_of(plan: Plan, *, has_outlook: bool = False) -> str:
    outlook = of(plan) if has_outlook else None
    return render(plan, bound=plan.bound(), claim=plan.claim(), curve=epsilon_chart(plan), outlook=outlook)


@pytest.mark.parametrize("steps", [1, 7, 5000])
def test_curve_runs_from_zero_to_the_bound_of_the_plan(steps: int) -> None:
    plan = replace(PLAN, steps=steps)
    [line] = epsilon_chart(plan).lines
    assert (line.x[0], line.y[0]) == (0, 0.0)
    assert (line.x[-1], line.y[-1]) == (steps, plan.bound().epsilon)
    assert len(line.x) == min(POINTS, steps + 1)
    assert all(a < b for a, b in itertools.pairwise(line.x))
    assert all(a <= b for a, b in itertools.pairwise(line.y))
    for index in range(len(line.x) - 1, 0, -60):
        exact = replace(PLAN, steps=int(line.x[index])).bound().epsilon
        assert exact * (1 - 1e-9) <= line.y[index] <= exact * 1.005  # an upper bound, and close


def test_page_has_the_numbers_the_claim_and_the_curve() -> None:
    text = page_of(PLAN)
    words = Page(text).words
    for expected in ("1.23", "60,000", "512", "500", "add-or-remove-one", "1e-05", PLAN.claim().theorem, "proven"):
        assert expected in words
    assert "Total amount of noise" not in words
    assert chart_lines(text, "curve")["ε"]["y"] == list(epsilon_chart(PLAN).lines[0].y)


def test_names_of_accountants_are_escaped_and_an_infinite_epsilon_has_no_curve() -> None:
    attack = "</script><script>alert('x')</script><b onclick=y>&amp;"
    bound = replace(
        PLAN.bound(), epsilon=math.inf, accountant=attack, passed_over=(Answer(attack, None, False, attack),)
    )
    text = render(PLAN, bound=bound, claim=PLAN.claim(), curve=epsilon_chart(PLAN))
    assert attack not in text
    assert "alert('x')" in Page(text).words
    assert "this plan protects nobody" in text
    assert charts(text) == {}


def test_noise_figures_are_on_the_page_with_the_plan_marked() -> None:
    text = page_of(BEHIND, has_outlook=True)
    assert [*charts(text)] == ["curve", "constant-eta", "divergence-ratio"]
    mark = chart_lines(text, "constant-eta")["your plan"]
    assert (mark["x"], mark["y"]) == ([BEHIND.noise_multiplier], [BEHIND.bound().epsilon])
    ratio = chart_lines(text, "divergence-ratio")
    decides, own = ratio["your plan, at the order that decides"], ratio["σ = 0.9, your plan"]
    assert own["y"][own["x"].index(decides["x"][0])] == decides["y"][0]
    for table in tan_tables(of(BEHIND)):
        assert table.title in Page(text).words


def test_curves_are_the_tight_ones_with_their_references() -> None:
    seen = of(CLEAR)
    for chart in tan_charts(seen):
        assert all(len(line.notes) == len(line.x) == len(line.y) for line in chart.lines)
    lines = {line.name: line for line in tan_charts(seen)[0].lines}
    own = next(curve for curve in seen.curves if curve.is_of_plan)
    assert list(lines["100 steps"].y) == [point.epsilon for point in own.points]
    assert list(lines["100 steps by rdp-balle20, as in the paper"].y) == [point.epsilon_balle20 for point in own.points]
    assert set(lines["privacy wall"].x) == {seen.standing.wall}
    assert set(lines["least ε at this η"].y) == {seen.standing.epsilon_limit}
    assert set(lines["from η alone, an estimate, not a guarantee"].y) == {seen.standing.epsilon_estimate}
    assert not any(tan_charts(replace(seen, curves=(), ratio_curves=())))


@pytest.mark.parametrize("plan, is_clear", [(CLEAR, True), (BEHIND, False), (FULL, True)])
def test_facts_call_an_estimate_one_and_name_the_side_of_the_wall(plan: Plan, is_clear: bool) -> None:
    standing = of(plan).standing
    facts = tan_facts(standing)
    assert f"{standing.epsilon_estimate:.4g}, an estimate, not a guarantee" in facts["ε from η alone"]
    assert "an estimate, not a guarantee" in tan_tables(of(plan))[-1].notes[0]
    assert facts["ε, tight"].startswith(at_most(plan.bound().epsilon))
    if standing.wall is not None:
        assert ("clear of it" in facts["privacy wall"]) == is_clear
    assert "none found" in tan_facts(replace(standing, wall=None))["privacy wall"]


def test_tables_name_the_plan_and_what_is_worth_its_cost() -> None:
    for plan in (CLEAR, BEHIND, FULL):
        for table in tan_tables(of(plan)):
            assert {len(row) for row in table.rows} == {len(table.headings)}
    rows = tan_tables(of(BEHIND))[0].rows
    [own] = [row for row in rows if "your plan" in row[-1]]
    assert (own[0], own[1], own[-1]) == ("50", "0.9", "your plan, behind the wall")
    assert len([row for row in rows if "most for its cost" in row[-1]]) == 1
    cheaper = replace(of(FULL).other_batches[0], signal_gain=-0.01)
    offered = replace(of(FULL), other_batches=(cheaper, *of(FULL).other_batches[1:]))
    assert tan_tables(offered)[0].rows[0][-1].startswith("nearly as good")
    assert len(tan_tables(replace(of(CLEAR), other_steps=()))) == 2


def test_noise_is_rounded_up_so_that_its_epsilon_still_holds() -> None:
    assert (noise_text(1.234561), noise_text(3.320984324175316)) == ("1.2346", "3.321")


@pytest.mark.parametrize("plan", [CLEAR, BEHIND, FULL])
def test_terminal_chart_marks_the_plan(plan: Plan) -> None:
    *drawing, legend = draw_constant_eta(of(plan), width=80).splitlines()
    assert sum(line.count("●") for line in drawing) == 1
    assert legend == " ● your plan"
    assert draw_constant_eta(replace(of(plan), curves=()), width=80).startswith("No chart")
