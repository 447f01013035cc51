"""The public plan of a run."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting import ACCOUNTANTS, bound
from lehr.accounting.claims import PublishedRule
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
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


def test_the_sampling_probability_is_the_batch_over_the_records_exactly() -> None:
    assert PLAN.sampling_probability == 512 / 60_000
    assert PLAN.step_event == PoissonSampled(512 / 60_000, Gaussian(1.23))
    assert PLAN.event == Repeated(PLAN.step_event, 4698)


def test_under_replace_one_the_batch_is_drawn_without_replacement() -> None:
    assert WITHOUT_REPLACEMENT.step_event == SampledWithoutReplacement(10_000, 100, Gaussian(2.0))
    assert WITHOUT_REPLACEMENT.bound().accountant == "rdp-balle20"


def test_bound_claim_and_curve_agree() -> None:
    plan = Plan(noise_multiplier=1.0, expected_batch_size=20, records=2000, steps=60, delta=1e-5)
    epsilon = plan.bound().epsilon
    assert plan.claim().epsilon == epsilon
    assert plan.claim().is_proven
    assert plan.curve().at(60) == epsilon
    assert epsilon == bound(plan.event, delta=1e-5).epsilon


@pytest.mark.parametrize("plan", [PLAN, WITHOUT_REPLACEMENT], ids=["poisson", "without replacement"])
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


def test_noise_for_a_target_never_overshoots() -> None:
    plan = make_plan(epsilon=2.0, delta=1e-5, records=10_000, expected_batch_size=100, steps=500)
    assert 0.999 * 2 <= plan.bound().epsilon <= 2


def test_a_batch_for_a_target_never_overshoots() -> None:
    plan = make_plan(epsilon=2.0, delta=1e-5, records=10_000, noise_multiplier=1.5, steps=500)
    assert 0.999 * 2 <= plan.bound().epsilon <= 2


def test_steps_for_a_target_are_the_largest_count() -> None:
    plan = make_plan(epsilon=2.0, delta=1e-5, records=10_000, expected_batch_size=100, noise_multiplier=1.5)
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
def test_a_bad_value_is_refused_by_name_before_anything_is_computed(name: str, value: object) -> None:
    good: dict[str, object] = {
        "epsilon": 2.0,
        "delta": 1e-5,
        "records": 10_000,
        "expected_batch_size": 100,
        "noise_multiplier": 1.5,
    }
    with pytest.raises(InvalidValue, match=rf"^{name} must be"):
        make_plan(**{**good, name: value})  # type: ignore[arg-type]


def test_a_fraction_of_a_record_cannot_be_drawn_without_replacement() -> None:
    with pytest.raises(InvalidValue, match="expected_batch_size must be a whole number"):
        Plan(
            noise_multiplier=1.0,
            expected_batch_size=10.5,
            records=100,
            steps=1,
            delta=1e-5,
            adjacency=Adjacency.REPLACE_ONE,
        )


DECAYING = LinearDecay(steps=4, first=2.0, last=1.0)
SCHEDULED = Plan(
    noise_multiplier=1.5, expected_batch_size=10, records=100, steps=6, delta=1e-5, noise_schedule=DECAYING
)


def test_under_a_schedule_every_step_is_counted_with_its_own_noise() -> None:
    factors = [2.0, 1.75, 1.5, 1.25, 1.0, 1.0]
    assert [SCHEDULED.noise_multiplier_at(step) for step in range(6)] == [1.5 * factor for factor in factors]
    counts = Counter(PoissonSampled(0.1, Gaussian(1.5 * factor)) for factor in factors)
    assert counted(SCHEDULED.event) == counts
    assert not SCHEDULED.has_equal_steps


@given(first=st.integers(0, 6), middle=st.integers(0, 6), last=st.integers(0, 6))
def test_the_parts_of_a_run_add_up_to_the_whole(first: int, middle: int, last: int) -> None:
    first, middle, last = sorted((first, middle, last))
    plan = replace(SCHEDULED, asked=PureDP(0.1))
    parts = together(plan.events(first, middle), plan.events(middle, last))
    assert counted(parts) == counted(plan.events(first, last))


def test_more_noise_at_first_costs_less_than_none() -> None:
    assert SCHEDULED.bound().epsilon < replace(SCHEDULED, noise_schedule=CONSTANT).bound().epsilon


def test_what_is_asked_at_every_step_is_counted_with_it() -> None:
    plan = replace(SCHEDULED, noise_schedule=CONSTANT, asked=PureDP(0.1))
    assert counted(plan.event) == {PoissonSampled(0.1, Gaussian(1.5)): 6, PureDP(0.1): 6}
    assert counted(plan.step_event) == {PoissonSampled(0.1, Gaussian(1.5)): 1, PureDP(0.1): 1}
    assert plan.bound().epsilon > replace(plan, asked=NOTHING).bound().epsilon


def test_a_target_is_met_with_the_schedule_and_the_questions_in_it() -> None:
    plan = make_plan(
        epsilon=2.0,
        delta=1e-5,
        records=1000,
        expected_batch_size=50,
        steps=2,
        noise_schedule=DECAYING,
        asked=PureDP(0.1),
    )
    assert 0.99 * 2 <= plan.bound().epsilon <= 2


def test_steps_cannot_be_found_under_a_schedule() -> None:
    with pytest.raises(InvalidValue, match="steps must be given where the noise follows a schedule"):
        make_plan(
            epsilon=2.0,
            delta=1e-5,
            records=1000,
            expected_batch_size=50,
            noise_multiplier=1.0,
            noise_schedule=DECAYING,
        )


def test_a_plan_that_stops_at_accepted_is_counted_at_all_of_its_candidates() -> None:
    plan = replace(SCHEDULED, noise_schedule=CONSTANT, stops_at_accepted=2)
    assert counted(plan.event) == {PoissonSampled(0.1, Gaussian(1.5)): 6}
    with pytest.raises(InvalidValue, match="stops_at_accepted"):
        replace(plan, stops_at_accepted=0)


def test_a_plan_without_noise_has_no_bound() -> None:
    assert replace(PLAN, noise_multiplier=0.0).bound().epsilon == math.inf


@pytest.mark.parametrize(
    "plan",
    [
        SCHEDULED,
        replace(SCHEDULED, asked=together(PureDP(0.1), PoissonSampled(0.2, Gaussian(3.0)))),
        replace(SCHEDULED, stops_at_accepted=2),
    ],
    ids=["schedule", "asked", "accepted"],
)
def test_schedules_and_questions_survive_a_file(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


LIMIT = RenyiLimit(order=6.0, divergence=0.5)
LIMITED = replace(SCHEDULED, noise_schedule=CONSTANT, limit=LIMIT)


def test_a_plan_with_a_limit_does_what_the_limit_admits_however_many_steps_that_is() -> None:
    assert LIMITED.event == LIMIT
    assert replace(LIMITED, steps=10**6).bound() == LIMITED.bound()
    assert LIMITED.bound().accountant == "rdp-balle20"
    assert not LIMITED.has_equal_steps


PLAN_published = Plan(noise_multiplier=1.0, expected_batch_size=10, records=100, steps=33, delta=1e-4)
STEP = PoissonSampled(0.1, Gaussian(1.0))
SOUND = PublishedRule(paper="Somebody (2020)", theorem="Theorem 1")
BROKEN = replace(SOUND, because="it is not so", shown_in="docs/published_claims.md")
ACCEPTED_ONLY = replace(BROKEN, counts_accepted_only=True)


def test_a_rule_for_all_candidates_counts_them_all() -> None:
    assert counted(published_event(BROKEN, replace(PLAN_published, stops_at_accepted=3))) == {STEP: 33}


def test_a_rule_for_accepted_candidates_counts_as_many_steps() -> None:
    assert counted(published_event(ACCEPTED_ONLY, replace(PLAN_published, stops_at_accepted=3))) == {STEP: 3}
    assert counted(published_event(ACCEPTED_ONLY, PLAN_published)) == {STEP: 33}  # where no number is said, all of them


def test_under_a_schedule_the_first_steps_are_the_ones_counted() -> None:
    scheduled = replace(PLAN_published, noise_schedule=LinearDecay(steps=4, first=2.0, last=1.0), stops_at_accepted=2)
    assert counted(published_event(ACCEPTED_ONLY, scheduled)) == {
        PoissonSampled(0.1, Gaussian(2.0)): 1,
        PoissonSampled(0.1, Gaussian(1.75)): 1,
    }


def test_a_rule_does_not_see_what_has_no_noise_and_sees_what_is_asked() -> None:
    asked = together(PureDP(0.1), NonPrivate("looks at gradients"))
    assert counted(published_event(BROKEN, replace(PLAN_published, asked=asked))) == {STEP: 33, PureDP(0.1): 33}


@pytest.mark.parametrize("accountant", ["rdp-mironov17", "rdp-balle20"])
def test_the_number_is_that_of_the_papers_accountant(accountant: str) -> None:
    claim = published_claim(replace(SOUND, accountant=accountant), PLAN_published)
    assert claim.epsilon == ACCOUNTANTS[accountant].epsilon(
        PLAN_published.event, delta=1e-4, adjacency=PLAN_published.adjacency
    )
    assert claim.accountant == accountant


def test_a_rule_that_holds_gives_a_proven_claim_which_is_no_smaller_than_the_bound() -> None:
    claim = published_claim(SOUND, PLAN_published)
    assert claim.is_proven
    assert claim.proof is not None
    assert claim.theorem == "Somebody (2020): Theorem 1"
    assert claim.epsilon >= bound(Repeated(STEP, 33), delta=1e-4).epsilon


def test_a_broken_rule_gives_a_number_with_its_reason_and_where_it_is_shown() -> None:
    claim = published_claim(ACCEPTED_ONLY, replace(PLAN_published, stops_at_accepted=3))
    assert claim.kind == "published"
    assert claim.proof is None
    [premise] = claim.broken
    assert premise.statement == "Theorem 1"
    assert premise.because == "it is not so; shown in docs/published_claims.md"
    assert claim.epsilon < PLAN_published.bound().epsilon
