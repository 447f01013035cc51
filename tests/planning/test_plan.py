"""The public plan of a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting import ACCOUNTANTS, bound
from lehr.accounting.claims import PublishedRule
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RenyiLimit,
    Repeated,
    SampledWithoutReplacement,
    counted,
    together,
)
from lehr.errors import InvalidValue
from lehr.planning.plan import Plan, make_plan, published_claim, published_event
from lehr.schedules import CONSTANT, LinearDecay

PLAN = Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=4698, delta=1e-5)
WITHOUT_REPLACEMENT = Plan(
    noise_multiplier=2.0, expected_batch_size=100, records=10_000, steps=50, delta=1e-5, adjacency=Adjacency.REPLACE_ONE
)
DECAYING = LinearDecay(steps=4, first=2.0, last=1.0)
SCHEDULED = Plan(
    noise_multiplier=1.5, expected_batch_size=10, records=100, steps=6, delta=1e-5, noise_schedule=DECAYING
)
STEP = PoissonSampled(0.1, Gaussian(1.5))


def test_the_sampling_probability_is_the_batch_over_the_records_exactly() -> None:
    assert PLAN.sampling_probability == 512 / 60_000
    assert PLAN.step_event == PoissonSampled(512 / 60_000, Gaussian(1.23))
    assert PLAN.event == Repeated(PLAN.step_event, 4698)


def test_under_replace_one_the_batch_is_drawn_without_replacement() -> None:
    assert WITHOUT_REPLACEMENT.step_event == SampledWithoutReplacement(10_000, 100, Gaussian(2.0))
    assert WITHOUT_REPLACEMENT.bound().accountant == "rdp-balle20"
    with pytest.raises(InvalidValue, match="expected_batch_size"):
        replace(WITHOUT_REPLACEMENT, expected_batch_size=10.5)


def test_bound_claim_and_curve_agree() -> None:
    plan = Plan(noise_multiplier=1.0, expected_batch_size=20, records=2000, steps=60, delta=1e-5)
    epsilon = plan.bound().epsilon
    assert plan.claim().epsilon == plan.curve().at(60) == epsilon == bound(plan.event, delta=1e-5).epsilon
    assert plan.claim().is_proven
    assert replace(plan, noise_multiplier=0.0).bound().epsilon == math.inf


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        WITHOUT_REPLACEMENT,
        SCHEDULED,
        replace(SCHEDULED, asked=together(PureDP(0.1), PoissonSampled(0.2, Gaussian(3.0)))),
        replace(SCHEDULED, stops_at_accepted=2),
        replace(PLAN, limit=RenyiLimit(order=6.0, divergence=0.5)),
    ],
)
def test_a_plan_survives_its_json_form(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@pytest.mark.parametrize(
    "change",
    [
        {"steps": None},
        {"steps": "10"},
        {"adjacency": "other"},
        {"epsilon": 3.0},
        {"delta": 0},
        {"records": 10**400},
        {"expected_batch_size": 60_001},
        {"noise_multiplier": -1},
    ],
)
def test_a_changed_json_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        Plan.from_json({**PLAN.to_json(), **change})


# Finding the fourth number.

GOOD: dict[str, Any] = {
    "epsilon": 2.0,
    "delta": 1e-5,
    "records": 10_000,
    "expected_batch_size": 100,
    "noise_multiplier": 1.5,
    "steps": 500,
}


@pytest.mark.parametrize("missing", ["noise_multiplier", "expected_batch_size"])
def test_noise_and_batch_for_a_target_never_overshoot(missing: str) -> None:
    plan = make_plan(**{name: value for name, value in GOOD.items() if name != missing})
    assert 0.999 * 2 <= plan.bound().epsilon <= 2


def test_steps_for_a_target_are_the_largest_count() -> None:
    plan = make_plan(**{name: value for name, value in GOOD.items() if name != "steps"})
    one_more = Repeated(plan.step_event, plan.steps + 1)
    assert plan.bound().epsilon <= 2 < bound(one_more, delta=1e-5).epsilon


def test_a_batch_without_replacement_is_the_largest_whole_number() -> None:
    plan = make_plan(
        epsilon=1.0, delta=1e-5, records=1000, noise_multiplier=4.0, steps=20, adjacency=Adjacency.REPLACE_ONE
    )
    larger = SampledWithoutReplacement(1000, int(plan.expected_batch_size) + 1, Gaussian(4.0))
    assert plan.expected_batch_size == int(plan.expected_batch_size)
    assert plan.bound().epsilon <= 1
    assert bound(Repeated(larger, 20), delta=1e-5, adjacency=Adjacency.REPLACE_ONE).epsilon > 1


def test_a_target_is_met_with_a_schedule_and_questions() -> None:
    how: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-5, "records": 1000, "expected_batch_size": 50}
    plan = make_plan(**how, steps=2, noise_schedule=DECAYING, asked=PureDP(0.1))
    assert 0.99 * 2 <= plan.bound().epsilon <= 2
    with pytest.raises(InvalidValue, match="steps"):
        make_plan(**how, noise_multiplier=1.0, noise_schedule=DECAYING)


@pytest.mark.parametrize(
    "name, value",
    [
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.nan),
        ("expected_batch_size", 0),
        ("expected_batch_size", 10_001),
        ("records", 0),
        ("records", 2.5),
        ("delta", 1.0),
        ("epsilon", 0.0),
        ("epsilon", math.inf),
        ("adjacency", "replace-one"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name} must be"):
        make_plan(**{**GOOD, "steps": None, name: value})


# Schedules, questions, candidates and limits.


def test_under_a_schedule_every_step_is_counted_with_its_own_noise() -> None:
    factors = [2.0, 1.75, 1.5, 1.25, 1.0, 1.0]
    assert [SCHEDULED.noise_multiplier_at(step) for step in range(6)] == [1.5 * factor for factor in factors]
    assert counted(SCHEDULED.event) == Counter(PoissonSampled(0.1, Gaussian(1.5 * factor)) for factor in factors)
    assert not SCHEDULED.has_equal_steps
    assert SCHEDULED.bound().epsilon < replace(SCHEDULED, noise_schedule=CONSTANT).bound().epsilon
    with pytest.raises(InvalidValue, match="noise_schedule"):
        replace(SCHEDULED, noise_schedule=LinearDecay(steps=4, first=1.0, last=0.0))


@given(places=st.lists(st.integers(0, 6), min_size=3, max_size=3))
def test_the_parts_of_a_run_add_up_to_the_whole(places: list[int]) -> None:
    first, middle, last = sorted(places)
    plan = replace(SCHEDULED, asked=PureDP(0.1))
    parts = together(plan.events(first, middle), plan.events(middle, last))
    assert counted(parts) == counted(plan.events(first, last))


def test_what_is_asked_at_every_step_is_counted_with_it() -> None:
    plan = replace(SCHEDULED, noise_schedule=CONSTANT, asked=PureDP(0.1))
    assert counted(plan.event) == {STEP: 6, PureDP(0.1): 6}
    assert counted(plan.step_event) == {STEP: 1, PureDP(0.1): 1}
    assert plan.bound().epsilon > replace(plan, asked=NOTHING).bound().epsilon


def test_a_plan_that_stops_at_accepted_is_counted_at_all_of_its_candidates() -> None:
    plan = replace(SCHEDULED, noise_schedule=CONSTANT, stops_at_accepted=2)
    assert counted(plan.event) == {STEP: 6}
    with pytest.raises(InvalidValue, match="stops_at_accepted"):
        replace(plan, stops_at_accepted=0)


def test_a_plan_with_a_limit_does_what_the_limit_admits_however_many_steps_that_is() -> None:
    limit = RenyiLimit(order=6.0, divergence=0.5)
    limited = replace(SCHEDULED, noise_schedule=CONSTANT, limit=limit)
    assert limited.event == limit
    assert replace(limited, steps=10**6).bound() == limited.bound()
    assert limited.bound().accountant == "rdp-balle20"
    assert not limited.has_equal_steps


# What papers count.

PAPER = Plan(noise_multiplier=1.5, expected_batch_size=10, records=100, steps=33, delta=1e-4)
SOUND = PublishedRule(paper="Somebody (2020)", theorem="Theorem 1")
BROKEN = replace(SOUND, because="it is not so", shown_in="docs/published_claims.md")
ACCEPTED_ONLY = replace(BROKEN, counts_accepted_only=True)
LOOKS = replace(PAPER, asked=together(PureDP(0.1), NonPrivate("looks at gradients")))
FIRST_TWO = {PoissonSampled(0.1, Gaussian(3.0)): 1, PoissonSampled(0.1, Gaussian(2.625)): 1}


@pytest.mark.parametrize(
    "rule, plan, expected",
    [
        (BROKEN, replace(PAPER, stops_at_accepted=3), {STEP: 33}),
        (ACCEPTED_ONLY, replace(PAPER, stops_at_accepted=3), {STEP: 3}),
        (ACCEPTED_ONLY, PAPER, {STEP: 33}),  # where no number is given, all of them
        (ACCEPTED_ONLY, replace(PAPER, noise_schedule=DECAYING, stops_at_accepted=2), FIRST_TWO),
        (BROKEN, LOOKS, {STEP: 33, PureDP(0.1): 33}),  # a rule does not see what has no noise
    ],
)
def test_a_rule_counts_what_its_paper_counts(rule: PublishedRule, plan: Plan, expected: dict[Event, int]) -> None:
    assert counted(published_event(rule, plan)) == expected


@pytest.mark.parametrize("accountant", ["rdp-mironov17", "rdp-balle20"])
def test_a_rule_that_holds_gives_a_proven_claim_by_the_papers_accountant(accountant: str) -> None:
    claim = published_claim(replace(SOUND, accountant=accountant), PAPER)
    expected = ACCOUNTANTS[accountant].epsilon(PAPER.event, delta=1e-4, adjacency=PAPER.adjacency)
    assert (claim.epsilon, claim.accountant) == (expected, accountant)
    assert claim.is_proven
    assert claim.proof is not None
    assert claim.epsilon >= bound(Repeated(STEP, 33), delta=1e-4).epsilon
    assert not published_claim(SOUND, LOOKS).is_proven  # it leaves out a part of what the run does


def test_a_broken_rule_gives_a_number_with_its_reason() -> None:
    claim = published_claim(ACCEPTED_ONLY, replace(PAPER, stops_at_accepted=3))
    assert (claim.kind, claim.proof) == ("published", None)
    [premise] = claim.broken
    assert premise.statement == "Theorem 1"
    assert "it is not so" in premise.because
    assert claim.epsilon < PAPER.bound().epsilon
