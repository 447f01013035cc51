"""A certificate as an object, a file and a text; what is not well formed is refused."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.accounting.claims import Premise, Standing
from lehr.accounting.events import NOTHING, Adjacency, Composed, Gaussian, NonPrivate, RepeatAndSelect, Repeated
from lehr.certificates.certificate import (
    MOST_EVENTS,
    WIDTH,
    AuditResult,
    Certificate,
    ExPost,
    PaidFor,
    Statements,
    certificate_from_json,
    certificate_text,
    certificate_to_json,
    distinct_events,
    how_chosen,
    one_line,
    read_certificate,
    write_certificate,
)
from lehr.certificates.guarantee import best_guess_text, guarantee_text
from lehr.errors import InvalidValue, StoreError


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


def test_every_field_comes_back_from_the_file(filled: Certificate, tmp_path: Path) -> None:
    write_certificate(tmp_path / "certificate.json", filled)
    assert read_certificate(tmp_path / "certificate.json") == filled


def test_empty_fields_come_back_too(filled: Certificate) -> None:
    bare = replace(
        filled, ex_post=None, budget=None, audit=None, settings_cost=None, published_claims=(), passed_over=()
    )
    assert certificate_from_json(json.loads(json.dumps(certificate_to_json(bare)))) == bare


def test_every_field_is_needed_and_no_other_is_taken(filled: Certificate) -> None:
    shape = certificate_to_json(filled)
    for path in _objects(shape):
        for key in _at(shape, path):
            _refused(_without(shape, path, key))
        _refused(_with(shape, path, "surprise", 1))


def test_no_number_may_be_a_word_or_nan_or_negative(filled: Certificate) -> None:
    shape = certificate_to_json(filled)
    for path in _objects(shape):
        for key, value in _at(shape, path).items():
            if isinstance(value, float):
                for wrong in ("3", None, True, float("nan"), -1.0):
                    _refused(_with(shape, path, key, wrong))


@pytest.mark.parametrize(
    "change", [{"format": "pdf"}, {"format_version": 1}, {"format_version": 3}, {"format_version": 2.0}]
)
def test_another_format_is_refused(filled: Certificate, change: dict[str, object]) -> None:
    _refused({**certificate_to_json(filled), **change})


@pytest.mark.parametrize("shape", [None, [], "certificate", {}, 3])
def test_what_is_no_certificate_is_refused(shape: object) -> None:
    _refused(shape)


def test_a_file_cut_short_anywhere_is_refused_and_named(filled: Certificate, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    write_certificate(path, filled)
    text = path.read_text(encoding="utf-8").rstrip()
    for length in range(0, len(text), 97):
        path.write_text(text[:length], encoding="utf-8")
        with pytest.raises(StoreError, match=r"certificate\.json"):
            read_certificate(path)


def _refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        certificate_from_json(shape)


Path_ = tuple[str | int, ...]


def _objects(shape: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Where the objects of a JSON value are."""
    if isinstance(shape, dict):
        yield path
    items = shape.items() if isinstance(shape, dict) else enumerate(shape) if isinstance(shape, list) else ()
    for key, value in items:
        yield from _objects(value, (*path, key))


def _at(shape: Any, path: Path_) -> dict[str, Any]:
    for key in path:
        shape = shape[key]
    assert isinstance(shape, dict)
    return shape


def _with(shape: object, path: Path_, key: str, value: object) -> object:
    changed = copy.deepcopy(shape)
    _at(changed, path)[key] = value
    return changed


def _without(shape: object, path: Path_, key: str) -> object:
    changed = copy.deepcopy(shape)
    del _at(changed, path)[key]
    return changed


def test_the_text_has_every_value(filled: Certificate) -> None:
    text = " ".join(certificate_text(filled).split())
    stated, claim = filled.stated, filled.claim.claim
    for value in (
        *(stated.unit_of_privacy, stated.raw_data_seen_by, stated.data_collection, *stated.treated_as_public),
        *(claim.theorem, f"{claim.proof}, SHA-256 abab", "each gradient is clipped", "gdp, an estimate"),
        *filled.assumptions,
        *("2 records", "ε = 2.5 at δ = 1e-05", "12.2 times as likely", "60,000", "Ex post, not a guarantee", "ε = 0.5"),
        *("Choosing them cost: Gaussian(noise_multiplier=4).", "'MNIST, training half' is ε = 3", "ε = 2.75 of it"),
        *("'first' (this model): 4698 ×", "'search': Gaussian", "NOT A GUARANTEE (published): ε = 1 by a paper's"),
        *("rejected steps cost nothing", "canaries in one run", "at least 1.2 with confidence 0.95", "2026-01-31"),
    ):
        assert value in text


def test_what_was_not_stated_is_said_to_be_so(filled: Certificate) -> None:
    stated = replace(
        filled.stated, settings_chosen_on="fixed", records_per_person=None, records=None, treated_as_public=()
    )
    bare = replace(
        filled, ex_post=None, budget=None, audit=None, settings_cost=None, published_claims=(), stated=stated
    )
    text = " ".join(certificate_text(bare).split())
    for answer in ("per person is not stated", "nothing was stated", "No budget was kept", "No audit is reported"):
        assert answer in text
    assert "Ex post" not in text


def test_lines_fit_a_terminal(filled: Certificate) -> None:
    assert max(len(line) for line in certificate_text(filled).splitlines()) <= WIDTH


def test_a_hopeless_epsilon_is_not_turned_into_an_overflow() -> None:
    words = guarantee_text(epsilon=1e6, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert "e^1e+06 times as likely" in words
    assert "replaced by another" in words


def test_a_certificate_that_does_not_hold_is_headed_by_the_reasons(filled: Certificate) -> None:
    shown = certificate_text(filled, mismatches=("epsilon is wrong", "the budget is overspent"))
    assert shown.startswith(
        "THIS PRIVACY CERTIFICATE DOES NOT HOLD\n  - epsilon is wrong\n  - the budget is overspent\n"
    )
    assert certificate_text(filled).startswith("PRIVACY CERTIFICATE\n\n")


def test_delta_and_audit_are_shown_in_all_their_digits(filled: Certificate) -> None:
    assert filled.audit is not None
    audit = replace(filled.audit, epsilon_lower_bound=1.23456, confidence=0.99999)
    text = " ".join(certificate_text(replace(filled, delta=1.0000004e-5, audit=audit)).split())
    assert "ε = 2.5 at δ = 1.0000004e-05." in text
    assert "at least 1.23456 with confidence 0.99999." in text


def test_a_choice_among_equal_trials_says_how_many_there_were_and_another_cost_does_not(filled: Certificate) -> None:
    step = Gaussian(4.0)
    among = replace(filled, event=Repeated(step, 12), settings_cost=Repeated(step, 9))
    assert "It was chosen among 4 trials" in " ".join(certificate_text(among).split())
    assert "trials" not in " ".join(how_chosen(replace(among, settings_cost=Repeated(step, 7))))


def test_a_selection_is_said_in_words(filled: Certificate) -> None:
    selected = replace(filled, event=RepeatAndSelect(Gaussian(4.0), mean=7.0, shape=0.0), settings_cost=None)
    assert "drawn by the logarithmic law with mean 7" in " ".join(certificate_text(selected).split())


def test_the_best_guess_is_the_bound_that_both_errors_have() -> None:
    """At every ε and δ the guesser whose errors are equal is allowed exactly that by the trade-off of the claim."""
    for epsilon, delta in ((0.0, 1e-5), (1.0, 1e-5), (3.0, 0.01), (8.0, 1e-6)):
        words = best_guess_text(epsilon=epsilon, delta=delta)
        told = float(words.split("at most ")[1].split(" %")[0]) / 100
        error = (1 - delta) / (1 + math.exp(epsilon))
        assert 1 - error <= told <= 1 - error + 1.1e-4


def test_the_best_guess_of_a_large_epsilon_is_always_right_and_does_not_overflow() -> None:
    assert "at most 100 % of" in best_guess_text(epsilon=5000.0, delta=1e-5)
