from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.planning.plan import Plan
from lehr.reports.rounding import at_most
from lehr.reports.tan_words import facts, noise, sentences, tables
from tests.reports.outlooks import BEHIND, CLEAR, FULL, of


@pytest.mark.parametrize("plan", [CLEAR, BEHIND, FULL])
def test_an_estimate_is_never_named_without_saying_that_it_is_one(plan: Plan) -> None:
    seen = of(plan)
    estimate = f"{seen.standing.epsilon_estimate:.4g}"
    for text in (facts(seen.standing)["ε from η alone"], next(sentences(seen))):
        assert f"{estimate}, an estimate, not a guarantee" in text
    assert "an estimate, not a guarantee" in tables(seen)[-1].note


@pytest.mark.parametrize("plan", [CLEAR, BEHIND, FULL])
def test_the_tight_epsilon_is_in_words_and_table(plan: Plan) -> None:
    seen = of(plan)
    assert f"the tight ε is {at_most(plan.bound().epsilon)}" in next(sentences(seen))
    assert facts(seen.standing)["ε, tight"].startswith(at_most(plan.bound().epsilon))


def test_it_says_on_which_side_of_the_wall_a_plan_stands() -> None:
    assert "stands clear of it" in " ".join(sentences(of(CLEAR)))
    assert "stands behind it" in " ".join(sentences(of(BEHIND)))
    assert facts(of(BEHIND).standing)["privacy wall"].endswith("behind it")


def test_a_plan_outside_the_range_of_the_estimate_is_told_so() -> None:
    assert "below 2, where ε no longer follows from η" in next(sentences(of(BEHIND)))
    assert "below 2" not in next(sentences(of(CLEAR)))


def test_where_no_wall_is_found_it_is_said() -> None:
    seen = of(CLEAR)
    odd = replace(seen, standing=replace(seen.standing, wall=None))
    assert "none found" in facts(odd.standing)["privacy wall"]
    assert "No privacy wall is found" in list(sentences(odd))[1]


def test_what_is_worth_its_cost_is_named_in_words_and_in_the_table() -> None:
    seen = of(BEHIND)
    [best] = [row for row in tables(seen)[0].rows if "most for its cost" in row[-1]]
    assert f"a batch of {best[0]} with a noise multiplier of {best[1]}" in " ".join(sentences(seen))


def test_full_batches_are_told_that_nothing_larger_helps_and_what_is_cheaper() -> None:
    said = " ".join(sentences(of(FULL)))
    assert "a larger batch brings no more" in said


def test_a_cheaper_batch_that_loses_little_is_named() -> None:
    seen = of(FULL)
    cheaper = replace(seen.other_batches[0], signal_gain=-0.01)
    offered = replace(seen, other_batches=(cheaper, *seen.other_batches[1:]))
    assert "Cheaper, and nearly as good: a batch of" in " ".join(sentences(offered))
    assert tables(offered)[0].rows[0][-1].startswith("nearly as good")


def test_the_row_of_the_plan_is_its_own_and_in_all_digits() -> None:
    batches = tables(of(BEHIND))[0]
    assert batches.own is not None
    assert batches.rows[batches.own][:2] == ("50", "0.9")
    assert batches.rows[batches.own][-1] == "your plan, behind the wall"


def test_every_row_has_a_cell_for_every_heading() -> None:
    for plan in (CLEAR, BEHIND, FULL):
        for table in tables(of(plan)):
            assert {len(row) for row in table.rows} == {len(table.headings)}


def test_a_table_without_rows_is_left_out() -> None:
    seen = of(CLEAR)
    assert len(tables(seen)) == 3
    assert len(tables(replace(seen, other_steps=()))) == 2


def test_noise_is_rounded_up_so_that_its_epsilon_still_holds() -> None:
    assert noise(1.234561) == "1.2346"
    for row in of(CLEAR).other_batches:
        assert float(noise(row.noise_multiplier)) >= row.noise_multiplier


def test_noise_that_was_found_is_told_in_few_digits() -> None:
    found = of(replace(CLEAR, noise_multiplier=3.320984324175316))
    [own] = [row for row in tables(found)[0].rows if "your plan" in row[-1]]
    assert own[1] == "3.321"
    assert "a noise multiplier of 3.321, ε" in next(sentences(found))
