"""One interface, and the smallest valid bound."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from lehr.accounting.accountant import ACCOUNTANTS, EpsilonCurve, answers, bound, claim
from lehr.accounting.claims import SECRET_REPETITIONS, TRUE_RECORD_COUNT, Standing
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)
from lehr.errors import InvalidValue, UnsupportedEvent

STEP = PoissonSampled(0.01, Gaussian(1.0))
RUN = Repeated(STEP, 1000)
DELTA = 1e-5


def test_the_accountants_are_listed_with_the_default_first() -> None:
    assert list(ACCOUNTANTS) == ["pld", "rdp-balle20", "rdp-mironov17", "gdp", "tan"]


def test_the_bound_is_the_smallest_valid_answer_and_no_estimate() -> None:
    given = {answer.accountant: answer for answer in answers(RUN, delta=DELTA)}
    smallest = bound(RUN, delta=DELTA)
    valid = [answer.epsilon for answer in given.values() if not answer.is_estimate and answer.epsilon is not None]
    assert smallest.epsilon == min(valid)
    assert given["gdp"].epsilon is not None
    assert given["gdp"].epsilon < smallest.epsilon  # so that taking an estimate would be noticed here


def test_every_other_accountant_is_passed_over_with_a_reason() -> None:
    smallest = bound(RUN, delta=DELTA)
    reasons = {other.accountant: other.reason for other in smallest.passed_over}
    assert set(reasons) == set(ACCOUNTANTS) - {smallest.accountant}
    assert "larger" in reasons["rdp-balle20"]
    assert "estimate" in reasons["tan"]


@pytest.mark.parametrize(
    "event, adjacency",
    [
        (Repeated(SampledWithoutReplacement(1000, 10, Gaussian(2.0)), 50), Adjacency.REPLACE_ONE),
        (RepeatAndSelect(RUN, mean=5.0), Adjacency.ADD_OR_REMOVE_ONE),
        (Composed((RUN, Laplace(3.0))), Adjacency.ADD_OR_REMOVE_ONE),
    ],
)
def test_an_event_that_pld_cannot_count_gets_a_renyi_bound_and_the_reason(event: Event, adjacency: Adjacency) -> None:
    found = bound(event, delta=DELTA, adjacency=adjacency)
    assert found.accountant == "rdp-balle20"
    assert 0 < found.epsilon < math.inf
    assert "Gaussian noise only" in {other.accountant: other.reason for other in found.passed_over}["pld"]


def test_an_event_that_no_accountant_can_count_is_refused_with_all_reasons() -> None:
    with pytest.raises(UnsupportedEvent, match=r"pld: .*rdp-balle20: .*tan: "):
        bound(RUN, delta=DELTA, adjacency=Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("event", [Gaussian(0.0), NonPrivate("raw"), Repeated(PoissonSampled(0.1, Gaussian(0.0)), 3)])
def test_without_noise_every_accountant_answers_infinity(event: Event) -> None:
    assert {answer.epsilon for answer in answers(event, delta=DELTA)} == {math.inf}
    assert bound(event, delta=DELTA).epsilon == math.inf


def test_nothing_costs_nothing() -> None:
    assert bound(Composed(()), delta=DELTA).epsilon == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -1e-5, math.nan, math.inf, "1e-5", None, True])
def test_a_bad_delta_is_refused_by_name(delta: object) -> None:
    with pytest.raises(InvalidValue, match=r"delta must be a number in \(0, 1\); given: "):
        bound(RUN, delta=delta)  # type: ignore[arg-type]


def test_a_bad_event_or_adjacency_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match="event must be an event; given: 'a run'"):
        bound("a run", delta=DELTA)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="adjacency must be an Adjacency"):
        bound(RUN, delta=DELTA, adjacency="replace-one")  # type: ignore[arg-type]


def test_a_claim_is_proven_and_names_what_is_assumed() -> None:
    found = claim(RUN, delta=DELTA)
    assert found.is_proven
    assert found.epsilon == bound(RUN, delta=DELTA).epsilon
    assumed = {premise.statement for premise in found.premises if premise.standing is Standing.ASSUMED}
    assert any("floating point" in statement for statement in assumed)
    assert any("number of records" in statement for statement in assumed)


def test_a_claim_without_sampling_needs_no_record_count() -> None:
    assert not any("number of records" in premise.statement for premise in claim(Gaussian(3.0), delta=DELTA).premises)


def test_what_is_sampled_within_a_selection_rests_on_the_number_of_records_and_on_the_secret() -> None:
    premises = claim(RepeatAndSelect(RUN, mean=5.0), delta=1e-5).premises
    assert {TRUE_RECORD_COUNT, SECRET_REPETITIONS} <= set(premises)
    assert "Papernot & Steinke" in claim(RepeatAndSelect(RUN, mean=5.0), delta=1e-5).theorem
    assert "Papernot & Steinke" not in claim(RUN, delta=1e-5).theorem
    assert SECRET_REPETITIONS not in claim(RUN, delta=1e-5).premises


STEPS: dict[str, Event] = {
    "sampled": PoissonSampled(512 / 60_000, Gaussian(1.23)),
    "unsampled": Gaussian(30.0),
    "a gradient and a noisy validation loss": Composed(
        (PoissonSampled(0.01, Gaussian(1.2)), PoissonSampled(0.005, Gaussian(1.3)))
    ),
    "free at first": PoissonSampled(1e-5, Gaussian(3.0)),
}


@pytest.mark.parametrize("name", STEPS)
def test_it_is_never_below_the_bound_and_within_half_a_percent(name: str) -> None:
    curve = EpsilonCurve(STEPS[name], delta=DELTA, largest_steps=1200)
    for steps in (1, 2, 3, 17, 150, 151, 400, 877, 1199):
        exact = bound(Repeated(STEPS[name], steps), delta=DELTA).epsilon
        assert exact * (1 - 1e-4) <= curve.at(steps) <= exact * 1.005 + 1e-12, steps


def test_asked_for_in_turn_it_is_never_below_the_bound_and_within_half_a_percent() -> None:
    step = STEPS["sampled"]
    curve = EpsilonCurve(step, delta=DELTA, largest_steps=800)
    values = [curve.at(steps) for steps in range(801)]
    assert all(earlier <= later for earlier, later in pairwise(values))
    for steps in (5, 99, 350, 351, 352, 640, 799):
        exact = bound(Repeated(step, steps), delta=DELTA).epsilon
        assert exact * (1 - 1e-4) <= values[steps] <= exact * 1.005


def test_a_chart_of_few_points_has_no_flat_spots() -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=1000)
    values = [curve.drawn_at(steps) for steps in range(900, 1001)]
    assert all(earlier < later for earlier, later in pairwise(values))
    with pytest.raises(InvalidValue, match=r"^steps must be at most 1000"):
        curve.drawn_at(1001)


def test_at_both_ends_it_is_exact() -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=500)
    assert curve.at(0) == 0
    assert curve.at(500) == bound(Repeated(STEPS["sampled"], 500), delta=DELTA).epsilon


def test_a_million_steps_are_within_reach() -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=10**6)
    values = [curve.at(steps) for steps in range(0, 10**6 + 1, 50_000)]
    assert all(earlier < later for earlier, later in pairwise(values))
    assert math.isfinite(values[-1])


def test_steps_that_only_the_renyi_accountant_counts_have_a_curve() -> None:
    step = SampledWithoutReplacement(1000, 10, Gaussian(3.0))
    curve = EpsilonCurve(step, delta=DELTA, largest_steps=50, adjacency=Adjacency.REPLACE_ONE)
    exact = bound(Repeated(step, 20), delta=DELTA, adjacency=Adjacency.REPLACE_ONE).epsilon
    assert curve.at(20) == pytest.approx(exact, rel=1e-9)


def test_steps_without_noise_are_infinite_from_the_first() -> None:
    curve = EpsilonCurve(Gaussian(0.0), delta=DELTA, largest_steps=10)
    assert [curve.at(steps) for steps in (0, 1, 10)] == [0, math.inf, math.inf]


@pytest.mark.parametrize("steps", [-1, 101, 2.5, "7"])
def test_steps_outside_of_the_plan_are_refused_by_name(steps: object) -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=100)
    with pytest.raises(InvalidValue, match=r"^steps must be"):
        curve.at(steps)  # type: ignore[arg-type]


def test_a_step_that_nobody_can_count_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedEvent):
        EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=100, adjacency=Adjacency.REPLACE_ONE)


def test_selection_has_a_curve() -> None:
    curve = EpsilonCurve(RepeatAndSelect(Gaussian(20.0), mean=3.0), delta=DELTA, largest_steps=4)
    assert 0 < curve.at(1) < curve.at(4)


def test_steps_with_a_pure_mechanism_have_a_curve() -> None:
    step = Composed((STEPS["sampled"], PureDP(0.01)))
    curve = EpsilonCurve(step, delta=DELTA, largest_steps=64)
    exact = [bound(Repeated(step, steps), delta=DELTA).epsilon for steps in (1, 20, 64)]
    found = [curve.at(steps) for steps in (1, 20, 64)]
    assert all(e * (1 - 1e-5) <= f <= e * 1.005 for e, f in zip(exact, found, strict=True))
