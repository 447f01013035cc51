"""A certificate as an object, a file and a text; what is not well formed is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.accounting.claims import Premise, Standing
from lehr.accounting.events import NOTHING, Composed, Gaussian, NonPrivate, RepeatAndSelect, Repeated
from lehr.certificates.certificate import (
    MOST_EVENTS,
    WIDTH,
    AuditResult,
    Certificate,
    ExPost,
    PaidFor,
    SharedBudget,
    Statements,
    certificate_from_json,
    certificate_text,
    certificate_to_json,
    how_chosen,
    one_line,
    read_certificate,
    write_certificate,
)
from lehr.errors import InvalidValue, StoreError
from tests.certificates.conftest import PUBLISHED


@pytest.fixture
def budget(filled: Certificate) -> SharedBudget:
    assert filled.budget is not None
    return filled.budget


def test_only_one_line_of_text_is_taken() -> None:
    for value in ("two\nlines", "", "  ", None, 3):
        with pytest.raises(InvalidValue, match="dataset"):
            one_line("dataset", value)
    assert one_line("dataset", "患者データ, données – ε ≤ 3") == "患者データ, données – ε ≤ 3"


@pytest.mark.parametrize(
    "mark", ["\x1b", "\x00", "\u200b", "\u202e", "\u2066", "\ufeff", "\u00ad", "\u3164", "\u2028", "\ud800"]
)
def test_marks_that_move_or_hide_text_are_refused_everywhere(filled: Certificate, mark: str) -> None:
    text = f"a{mark}b"
    broken = replace(PUBLISHED, premises=(Premise("a premise", Standing.BROKEN, text),))
    for name, value in {
        "theorem": text,
        "proof": text,
        "accountant": text,
        "assumptions": (text,),
        "event": NonPrivate(text),
        "premises": (Premise("a premise", Standing.MET, text),),
        "published_claims": (broken,),
    }.items():
        with pytest.raises(InvalidValue, match="without control or invisible characters"):
            replace(filled, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="unit_of_privacy"):
        replace(filled.stated, unit_of_privacy=text)


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
        {"settings_cost": 0.3},
        {"library_version": "0.1\n"},
        {"assumptions": ["a list"]},
        {"proof_sha256": "AB" * 32},
        {"proof_sha256": "ab"},
        {"published_claims": (replace(PUBLISHED, epsilon=math.inf),)},
    ],
)
def test_impossible_fields_are_refused(filled: Certificate, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        replace(filled, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"settings_chosen_on": "the weather"},
        {"records_per_person": 0},
        {"records": 2.5},
        {"records": True},
        {"treated_as_public": "the labels"},
        {"released": (3,)},
    ],
)
def test_impossible_statements_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        replace(Statements(settings_chosen_on="fixed"), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "trust"},
        {"orders": (0.0,)},
        {"orders": tuple(float(order) for order in range(2, 23))},
        {"epsilon": 0.0},
        {"dataset": ""},
        {"spent_epsilon": math.inf},
        {"paid_for": (PaidFor(run="", event=NOTHING),)},
    ],
)
def test_impossible_budgets_are_refused(budget: SharedBudget, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        replace(budget, **change)


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan, "high"])
def test_other_parts_are_checked_too(confidence: float) -> None:
    with pytest.raises(InvalidValue, match="confidence"):
        AuditResult(method="canaries", epsilon_lower_bound=1.0, confidence=confidence)
    with pytest.raises(InvalidValue, match="not a guarantee"):
        ExPost(event=Gaussian(1.0), epsilon=1.0, meaning="a guarantee")


def test_a_budget_looks_up_what_it_charged_by_the_name_of_the_run(budget: SharedBudget) -> None:
    first, search = (payment.event for payment in budget.paid_for)
    assert budget.total == Composed((first, search))
    assert budget.charged == first
    assert replace(budget, run="search").charged == search
    assert replace(budget, run="unknown").charged == NOTHING


def test_a_certificate_that_would_take_hours_to_check_is_refused(filled: Certificate, budget: SharedBudget) -> None:
    many = Composed(tuple(Gaussian(float(noise)) for noise in range(1, MOST_EVENTS + 2)))
    for event in (many, RepeatAndSelect(many, mean=2.0)):
        for change in ({"event": event}, {"budget": replace(budget, paid_for=(PaidFor(run="first", event=event),))}):
            with pytest.raises(InvalidValue, match="events"):
                replace(filled, **change)


# The file.


def bare(filled: Certificate) -> Certificate:
    empty = {"ex_post": None, "budget": None, "audit": None, "settings_cost": None, "published_claims": ()}
    return replace(filled, **empty)  # type: ignore[arg-type]


def test_every_field_comes_back_from_the_file(filled: Certificate, tmp_path: Path) -> None:
    for certificate in (filled, bare(filled)):
        write_certificate(tmp_path / "certificate.json", certificate, overwrite=True)
        assert read_certificate(tmp_path / "certificate.json") == certificate


def test_every_field_is_needed_and_no_other_is_taken(filled: Certificate) -> None:
    shape = certificate_to_json(filled)
    for path in _objects(shape):
        for key in _at(shape, path):
            _refused(_with(shape, path, key, is_removed=True))
        _refused(_with(shape, path, "surprise", 1))


def test_no_number_may_be_a_word_or_nan_or_negative(filled: Certificate) -> None:
    shape = certificate_to_json(filled)
    for path in _objects(shape):
        for key, value in _at(shape, path).items():
            if isinstance(value, float):
                for wrong in ("3", None, True, math.nan, math.inf, -1.0, 10**400):
                    _refused(_with(shape, path, key, wrong))


def test_another_format_is_refused(filled: Certificate) -> None:
    for change in ({"format": "pdf"}, {"format_version": 2}, {"format_version": 4}, {"format_version": 3.0}):
        _refused({**certificate_to_json(filled), **change})
    others: tuple[object, ...] = (None, [], "certificate", {}, 3)
    for other in others:
        _refused(other)


def test_a_file_cut_short_anywhere_is_refused(filled: Certificate, tmp_path: Path) -> None:
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


def _with(shape: object, path: Path_, key: str, value: object = None, *, is_removed: bool = False) -> object:
    changed = copy.deepcopy(shape)
    place = _at(changed, path)
    place[key] = value
    if is_removed:
        del place[key]
    return changed


# The text.


def text_of(certificate: Certificate) -> str:
    return " ".join(certificate_text(certificate).split())


def test_the_text_has_every_value(filled: Certificate) -> None:
    text, stated = text_of(filled), filled.stated
    for value in (
        *(stated.unit_of_privacy, stated.raw_data_seen_by, stated.data_collection, *stated.treated_as_public),
        *(filled.theorem, f"{filled.proof}, SHA-256 abab", "each gradient is clipped", *filled.assumptions),
        *("2 records", "ε = 2.5 at δ = 1e-05", "12.2 times as likely", "60,000", "Ex post, not a guarantee", "ε = 0.5"),
        *("Choosing them cost: Gaussian(noise_multiplier=4).", "'MNIST, training half' is ε = 3", "ε = 2.75 of it"),
        *("'first' (this model): 4698 ×", "'search': Gaussian", "NOT A GUARANTEE (published): ε = 1 by a paper's"),
        *("rejected steps cost nothing", "canaries in one run", "at least 1.2 with confidence 0.95", "2026-01-31"),
    ):
        assert value in text
    assert max(len(line) for line in certificate_text(filled).splitlines()) <= WIDTH


def test_what_was_not_stated_is_said_to_be_so(filled: Certificate) -> None:
    stated = replace(
        filled.stated, settings_chosen_on="fixed", records_per_person=None, records=None, treated_as_public=()
    )
    text = text_of(replace(bare(filled), stated=stated))
    for answer in ("per person is not stated", "nothing was stated", "No budget was kept", "No audit is reported"):
        assert answer in text
    assert "Ex post" not in text


def test_mismatches_come_first_and_on_lines_of_their_own(filled: Certificate) -> None:
    first, *others = certificate_text(filled, mismatches=("epsilon is wrong", "two\nlines")).splitlines()
    assert "NOT" in first
    assert others[:2] == ["  - epsilon is wrong", "  - two lines"]


def test_how_settings_were_chosen_on_private_data(filled: Certificate) -> None:
    step = Gaussian(4.0)
    among = replace(filled, event=Repeated(step, 12), settings_cost=Repeated(step, 9))
    assert "among 4 trials" in " ".join(how_chosen(among))
    assert "trials" not in " ".join(how_chosen(replace(among, settings_cost=Repeated(step, 7))))
    selected = replace(filled, event=RepeatAndSelect(step, mean=7.0, shape=0.0), settings_cost=None)
    assert "logarithmic law with mean 7" in " ".join(how_chosen(selected))
