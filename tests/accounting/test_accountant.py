"""One interface, and the smallest valid bound."""

from __future__ import annotations

import math

import pytest

from lehr.accounting.accountant import ACCOUNTANTS, Accountant, answers, bound, claim, version
from lehr.claims import SECRET_REPETITIONS, TRUE_RECORD_COUNT, Standing
from lehr.errors import InvalidValue, UnsupportedEvent
from lehr.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)

STEP = PoissonSampled(0.01, Gaussian(1.0))
RUN = Repeated(STEP, 1000)
DELTA = 1e-5


def test_the_accountants_are_listed_with_the_default_first() -> None:
    assert list(ACCOUNTANTS) == ["pld", "rdp-balle20", "rdp-mironov17", "gdp", "tan"]


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_every_accountant_says_what_it_rests_on(name: str) -> None:
    accountant: Accountant = ACCOUNTANTS[name]
    assert accountant.name == name
    assert accountant.theorem


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


def test_the_version_names_every_package_that_a_number_depends_on() -> None:
    for package in ("lehr", "dp-accounting", "numpy", "scipy"):
        assert f"{package} " in version()


def test_what_is_sampled_within_a_selection_rests_on_the_number_of_records_and_on_the_secret() -> None:
    premises = claim(RepeatAndSelect(RUN, mean=5.0), delta=1e-5).premises
    assert {TRUE_RECORD_COUNT, SECRET_REPETITIONS} <= set(premises)
    assert "Papernot & Steinke" in claim(RepeatAndSelect(RUN, mean=5.0), delta=1e-5).theorem
    assert "Papernot & Steinke" not in claim(RUN, delta=1e-5).theorem
    assert SECRET_REPETITIONS not in claim(RUN, delta=1e-5).premises
