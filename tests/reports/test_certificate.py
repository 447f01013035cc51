from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lehr.claims import Premise, Standing
from lehr.errors import InvalidValue
from lehr.events import NOTHING, Composed, Gaussian, NonPrivate, RepeatAndSelect, Repeated
from lehr.reports.certificate import (
    MOST_EVENTS,
    AuditResult,
    Certificate,
    ExPost,
    PaidFor,
    Statements,
    distinct_events,
    one_line,
)


@pytest.mark.parametrize("value", ["\x1b[2J", "two\nlines", "\u202eback", "a\x00b", "\u2028", "", "  ", None, 3])
def test_what_a_terminal_would_obey_is_no_line_of_text(value: object) -> None:
    with pytest.raises(InvalidValue, match="dataset must be"):
        one_line("dataset", value)


def test_text_of_any_language_is_a_line_of_text() -> None:
    for line in ("Patienten, 2. Hälfte", "患者データ", "données – ε ≤ 3"):
        assert one_line("dataset", line) == line


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": math.inf},
        {"epsilon": math.nan},
        {"epsilon": -1.0},
        {"delta": 1.0},
        {"delta": 0.0},
        {"issued_on": "31.1.2026"},
        {"issued_on": "20260131"},
        {"issued_on": "2026-02-30"},
        {"event": "a training run"},
        {"event": NonPrivate("\x1b[2J")},
        {"settings_cost": 0.3},
        {"library_version": "0.1\n"},
        {"assumptions": ["a list"]},
        {"assumptions": ("\x07",)},
    ],
)
def test_a_field_that_cannot_be_is_refused(filled: Certificate, change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=" must be "):
        replace(filled, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"settings_chosen_on": "the weather"},
        {"records_per_person": 0},
        {"records": 2.5},
        {"records": True},
        {"unit_of_privacy": "one\nrecord"},
        {"treated_as_public": "the labels"},
        {"released": (3,)},
    ],
)
def test_a_statement_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=" must be "):
        replace(Statements(settings_chosen_on="fixed"), **change)  # type: ignore[arg-type]


def test_an_infinite_claim_cannot_be_stated(filled: Certificate) -> None:
    with pytest.raises(InvalidValue, match="epsilon must be a finite number"):
        replace(filled.claim, claim=replace(filled.claim.claim, epsilon=math.inf))


@pytest.mark.parametrize("change", [{"kind": "certain"}, {"proof_sha256": "AB" * 32}, {"proof_sha256": "ab"}])
def test_a_claim_in_other_words_is_refused(filled: Certificate, change: dict[str, str]) -> None:
    with pytest.raises(InvalidValue, match=" must be "):
        replace(filled.claim, **change)  # type: ignore[arg-type]


def test_an_ex_post_number_keeps_its_warning() -> None:
    with pytest.raises(InvalidValue, match="not a guarantee"):
        ExPost(event=Gaussian(1.0), epsilon=1.0, meaning="a guarantee")


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan, "high"])
def test_an_audit_has_a_confidence_between_none_and_certainty(confidence: float) -> None:
    with pytest.raises(InvalidValue, match="confidence"):
        AuditResult(method="canaries", epsilon_lower_bound=1.0, confidence=confidence)


@pytest.mark.parametrize(
    "change", [{"mode": "trust"}, {"orders": (0.0,)}, {"epsilon": 0.0}, {"dataset": ""}, {"spent_epsilon": math.inf}]
)
def test_a_budget_that_cannot_be_is_refused(filled: Certificate, change: dict[str, object]) -> None:
    assert filled.budget is not None
    with pytest.raises(InvalidValue, match=" must be "):
        replace(filled.budget, **change)  # type: ignore[arg-type]


def test_a_budget_paid_for_all_of_its_runs_together(filled: Certificate) -> None:
    assert filled.budget is not None
    assert filled.budget.total == Composed(tuple(payment.event for payment in filled.budget.paid_for))


def test_what_a_budget_charged_for_the_run_is_looked_up_by_its_name(filled: Certificate) -> None:
    assert filled.budget is not None
    assert filled.budget.charged == filled.budget.paid_for[0].event
    assert replace(filled.budget, run="search").charged == filled.budget.paid_for[1].event
    assert replace(filled.budget, run="unknown").charged == NOTHING


@pytest.mark.parametrize(
    "mark", ["\x1b", "\u200b", "\u202e", "\u2066", "\ufeff", "\u00ad", "\u3164", "\u2028", "\ud800"]
)
def test_a_mark_that_moves_or_hides_text_is_refused_everywhere(filled: Certificate, mark: str) -> None:
    for change in ({"proof": f"a{mark}b"}, {"theorem": f"a{mark}b"}, {"accountant": f"a{mark}b"}):
        with pytest.raises(InvalidValue, match="without control or invisible characters"):
            replace(filled.claim, claim=replace(filled.claim.claim, **change))  # type: ignore[arg-type]
    premise = Premise("a premise", Standing.MET, f"a{mark}b")
    with pytest.raises(InvalidValue, match="because must be"):
        replace(filled.claim, claim=replace(filled.claim.claim, premises=(premise,)))
    with pytest.raises(InvalidValue, match="unit_of_privacy must be"):
        replace(filled.stated, unit_of_privacy=f"one{mark}record")


def test_a_certificate_that_would_take_hours_to_check_is_refused(filled: Certificate) -> None:
    assert filled.budget is not None
    many = Composed(tuple(Gaussian(float(noise)) for noise in range(1, MOST_EVENTS + 2)))
    for event in (many, RepeatAndSelect(many, mean=2.0)):
        with pytest.raises(InvalidValue, match="at most 100 distinct ones"):
            replace(filled, event=event)
        with pytest.raises(InvalidValue, match="at most 100 distinct ones"):
            replace(filled, budget=replace(filled.budget, paid_for=(PaidFor(run="first", event=event),)))
    with pytest.raises(InvalidValue, match="orders must be at most 20 numbers"):
        replace(filled.budget, orders=tuple(float(order) for order in range(2, 23)))


def test_events_within_a_selection_are_found() -> None:
    selection = RepeatAndSelect(Composed((Gaussian(1.0), Repeated(Gaussian(2.0), 3))), mean=2.0)
    assert distinct_events([selection, Gaussian(1.0)]) == {selection, Gaussian(1.0), Gaussian(2.0)}
