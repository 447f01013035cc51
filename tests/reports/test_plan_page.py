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
    epsilon_points,
    noise_text,
    render,
    tan_charts,
    tan_facts,
    tan_sentences,
    tan_tables,
)
from lehr.rounding import at_most
from tests.reports.outlooks import BEHIND, CLEAR, FULL, of
from tests.reports.pages import Page, chart_lines, charts

PLAN = Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=500, delta=1e-5)


def page_of(plan: Plan, *, has_outlook: bool = False) -> str:
    outlook = of(plan) if has_outlook else None
    return render(plan, bound=plan.bound(), claim=plan.claim(), points=epsilon_points(plan), outlook=outlook)


@pytest.mark.parametrize("steps", [1, 7, 5000])
def test_points_run_from_zero_to_the_bound_of_the_plan(steps: int) -> None:
    plan = replace(PLAN, steps=steps)
    found = epsilon_points(plan)
    assert (found[0].steps, found[0].epsilon) == (0, 0.0)
    assert (found[-1].steps, found[-1].epsilon) == (steps, plan.bound().epsilon)
    assert len(found) == min(POINTS, steps + 1)
    assert all(a.steps < b.steps and a.epsilon <= b.epsilon for a, b in itertools.pairwise(found))


def test_points_are_upper_bounds_and_close() -> None:
    for point in epsilon_points(replace(PLAN, steps=5000), most=5)[1:]:
        exact = replace(PLAN, steps=point.steps).bound().epsilon
        assert exact * (1 - 1e-9) <= point.epsilon <= exact * 1.005


def test_the_page_has_the_numbers_the_claim_and_the_curve() -> None:
    text = page_of(PLAN)
    words = Page(text).words
    for expected in ("1.23", "60,000", "512", "500", "add-or-remove-one", "1e-05", PLAN.claim().theorem, "proven"):
        assert expected in words
    assert "Total amount of noise" not in words
    line = chart_lines(text, "curve")["ε"]
    assert list(zip(line["x"], line["y"], strict=True)) == [(p.steps, p.epsilon) for p in epsilon_points(PLAN)]


def test_an_accountant_cannot_write_html() -> None:
    attack = "</script><script>alert('x')</script><b onclick=y>&amp;"
    bound = replace(PLAN.bound(), accountant=attack, passed_over=(Answer(attack, None, False, attack),))
    text = render(PLAN, bound=bound, claim=PLAN.claim(), points=epsilon_points(PLAN))
    assert attack not in text
    assert "alert('x')" in Page(text).words


def test_an_infinite_epsilon_has_no_curve() -> None:
    endless = tuple(replace(point, epsilon=math.inf) for point in epsilon_points(PLAN))
    text = render(PLAN, bound=replace(PLAN.bound(), epsilon=math.inf), claim=PLAN.claim(), points=endless)
    assert "this plan protects nobody" in text
    assert charts(text) == {}


def test_the_noise_figures_are_on_the_page_with_the_plan_marked() -> None:
    text = page_of(BEHIND, has_outlook=True)
    assert [*charts(text)] == ["curve", "constant-eta", "divergence-ratio"]
    mark = chart_lines(text, "constant-eta")["your plan"]
    assert (mark["x"], mark["y"]) == ([BEHIND.noise_multiplier], [BEHIND.bound().epsilon])
    ratio = chart_lines(text, "divergence-ratio")
    decides, own = ratio["your plan, at the order that decides"], ratio["σ = 0.9, your plan"]
    assert own["y"][own["x"].index(decides["x"][0])] == decides["y"][0]
    words = Page(text).words
    for expected in (*tan_sentences(of(BEHIND)), *(table.title for table in tan_tables(of(BEHIND)))):
        assert expected in words


def test_the_curves_are_the_tight_ones_with_their_references() -> None:
    seen = of(CLEAR)
    for chart in tan_charts(seen):
        assert all(len(line.notes) == len(line.x) == len(line.y) for line in chart.lines)
    lines = {line.name: line for line in next(tan_charts(seen)).lines}
    own = next(curve for curve in seen.curves if curve.is_of_plan)
    assert list(lines["100 steps"].y) == [point.epsilon for point in own.points]
    assert list(lines["100 steps by rdp-balle20, as in the paper"].y) == [point.epsilon_balle20 for point in own.points]
    assert set(lines["privacy wall"].x) == {seen.standing.wall}
    assert set(lines["least ε at this η"].y) == {seen.standing.epsilon_limit}
    assert set(lines["from η alone, an estimate, not a guarantee"].y) == {seen.standing.epsilon_estimate}
    assert [*tan_charts(replace(seen, curves=(), ratio_curves=()))] == []


@pytest.mark.parametrize("plan", [CLEAR, BEHIND, FULL])
def test_an_estimate_is_always_called_one_and_the_tight_epsilon_stands_beside_it(plan: Plan) -> None:
    seen = of(plan)
    facts, first = dict(tan_facts(seen.standing)), next(tan_sentences(seen))
    estimate = f"{seen.standing.epsilon_estimate:.4g}"
    for text in (facts["ε from η alone"], first):
        assert estimate in text
        assert "an estimate, not a guarantee" in text
    assert "an estimate, not a guarantee" in tan_tables(seen)[-1].notes[0]
    assert at_most(plan.bound().epsilon) in first
    assert facts["ε, tight"].startswith(at_most(plan.bound().epsilon))


def test_a_plan_is_told_on_which_side_of_the_wall_it_is() -> None:
    assert "The plan is clear of it" in " ".join(tan_sentences(of(CLEAR)))
    assert "The plan is behind it" in " ".join(tan_sentences(of(BEHIND)))
    assert dict(tan_facts(of(BEHIND).standing))["privacy wall"].endswith("behind it")
    odd = replace(of(CLEAR), standing=replace(of(CLEAR).standing, wall=None))
    assert "none found" in dict(tan_facts(odd.standing))["privacy wall"]
    assert "No privacy wall" in list(tan_sentences(odd))[1]


def test_what_is_worth_its_cost_is_named_in_words_and_in_the_table() -> None:
    [best] = [row for row in tan_tables(of(BEHIND))[0].rows if "most for its cost" in row[-1]]
    assert f"a batch of {best[0]} with a noise multiplier of {best[1]}" in " ".join(tan_sentences(of(BEHIND)))
    assert "a larger batch brings no more" in " ".join(tan_sentences(of(FULL)))
    cheaper = replace(of(FULL).other_batches[0], signal_gain=-0.01)
    offered = replace(of(FULL), other_batches=(cheaper, *of(FULL).other_batches[1:]))
    assert "Cheaper and nearly as good: a batch of" in " ".join(tan_sentences(offered))
    assert tan_tables(offered)[0].rows[0][-1].startswith("nearly as good")


def test_the_row_of_the_plan_is_highlighted_and_every_heading_has_its_cells() -> None:
    batches = tan_tables(of(BEHIND))[0]
    assert batches.highlighted is not None
    own = batches.rows[batches.highlighted]
    assert (own[0], own[1], own[-1]) == ("50", "0.9", "your plan, behind the wall")
    for plan in (CLEAR, BEHIND, FULL):
        for table in tan_tables(of(plan)):
            assert {len(row) for row in table.rows} == {len(table.headings)} == {len(table.numeric)}
    assert len(tan_tables(replace(of(CLEAR), other_steps=()))) == 2


def test_noise_is_rounded_up_so_that_its_epsilon_still_holds() -> None:
    assert (noise_text(1.234561), noise_text(3.320984324175316)) == ("1.2346", "3.321")
    for row in of(CLEAR).other_batches:
        assert float(noise_text(row.noise_multiplier)) >= row.noise_multiplier


@pytest.mark.parametrize("plan", [CLEAR, BEHIND, FULL])
def test_the_plan_is_marked_on_the_terminal_chart(plan: Plan) -> None:
    *drawing, legend = draw_constant_eta(of(plan), width=80).splitlines()
    assert sum(line.count("●") for line in drawing) == 1
    assert legend == " ● your plan"
    assert draw_constant_eta(replace(of(plan), curves=()), width=80).startswith("No chart")
