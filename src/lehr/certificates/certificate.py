"""What a released model promises to the people in its data, as one file that a stranger can check.

The fields answer the questions that NIST SP 800-226 tells a reader to ask of a privacy guarantee: who is protected
(``stated.unit_of_privacy``, ``adjacency``), how well (``epsilon``, ``delta``), why that follows (``event``, ``claim``),
on what it rests (``assumptions``), who must be trusted with the raw data, and what else was done with the same records.

Three kinds of content are kept apart: what Lehr computed and can compute again, what the issuer stated and nobody can
check (``stated``), and numbers that are no guarantee (``ex_post``, ``published_claims``). It holds public numbers only:
no fingerprint of the data, and no count of records but the one that the issuer states.
"""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import date
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

from lehr import validate
from lehr.accounting import events
from lehr.accounting.claims import Claim, Standing
from lehr.accounting.events import (
    EVENT_TYPES,
    Adjacency,
    Composed,
    Event,
    RepeatAndSelect,
    counted,
    rest,
    together,
)
from lehr.certificates.guarantee import delta_warning, guarantee_text
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.budget import FILTER, SINGLE_PLAN
from lehr.planning.search_cost import composition_in_words, selection_in_words
from lehr.rounding import at_most, exactly

NOT_STATED = "not stated"
EX_POST_MEANING = "ex post: what was done would have cost this had it been the plan; not a guarantee"
SETTINGS_CHOSEN_ON = ("fixed", "public", "private")
KINDS = ("proven", "published", "estimate")
BUDGET_MODES = (FILTER, SINGLE_PLAN)
MOST_EVENTS, MOST_ORDERS = 100, 20  # a stranger's file must not keep its checker busy for hours


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """What only a person can say. Lehr passes it on and does not vouch for it."""

    settings_chosen_on: str  # "fixed": before any data was seen; "public" data; or "private" data, and then it costs
    unit_of_privacy: str = "one record"
    records_per_person: int | None = None
    records: int | None = None
    treated_as_public: tuple[str, ...] = ()
    released: tuple[str, ...] = ("the trained model",)
    raw_data_seen_by: str = NOT_STATED
    data_collection: str = NOT_STATED

    def __post_init__(self) -> None:
        validate.one_of(SETTINGS_CHOSEN_ON, settings_chosen_on=self.settings_chosen_on)
        _check_fields(self)

    def of_records(self, records: int) -> Statements:
        """The same statements about a run of so many records; refused where they name another number."""
        if self.records not in (None, records):
            raise InvalidValue("stated.records", allowed=f"that of the run, {records}", given=self.records)
        return replace(self, records=records)


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedClaim:
    """A claim as the certificate words it. ``kind`` and ``proof_sha256`` are statements, for ``check`` to verify."""

    kind: str
    claim: Claim
    proof_sha256: str | None

    def __post_init__(self) -> None:
        validate.one_of(KINDS, kind=self.kind)
        _check_fields(self.claim)  # a claim may be infinite, a certificate's may not
        for premise in self.claim.premises:
            one_line("premise", premise.statement)
            one_line("because", premise.because or "none")
        if self.proof_sha256 is not None and not re.fullmatch("[0-9a-f]{64}", self.proof_sha256):
            raise InvalidValue("proof_sha256", allowed="64 hexadecimal digits", given=self.proof_sha256)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExPost:
    """What was done in the end, and its ε had that been the plan. Never a guarantee: a stop may depend on the data."""

    event: Event
    epsilon: float
    meaning: str = EX_POST_MEANING

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.meaning != EX_POST_MEANING:
            raise InvalidValue("ex_post meaning", allowed=f"the sentence {EX_POST_MEANING!r}", given=self.meaning)


@dataclass(frozen=True, kw_only=True, slots=True)
class PaidFor:
    """One thing that a budget paid for."""

    run: str
    event: Event

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedBudget:
    """The budget of the data set: its limit, everything that it paid for, and the ε of all that together."""

    dataset: str
    run: str  # the name under which the budget paid for this model
    epsilon: float
    delta: float
    adjacency: Adjacency
    spent_epsilon: float
    mode: str  # "filter", or "single plan" where the budget was given to one plan and is closed
    orders: tuple[float, ...]  # of the filter; fixed when the budget was opened
    reserved: Event  # for this run, before it began: all that it was allowed to do
    paid_for: tuple[PaidFor, ...]  # in the order in which the runs reserved

    def __post_init__(self) -> None:
        _check_fields(self)
        validate.positive(epsilon=self.epsilon)
        validate.delta(delta=self.delta)
        validate.one_of(BUDGET_MODES, mode=self.mode)
        if len(self.orders) > MOST_ORDERS:
            raise InvalidValue("orders", allowed=f"at most {MOST_ORDERS} numbers", given=len(self.orders))
        for order in self.orders:
            validate.positive(order=order)

    @property
    def charged(self) -> Event:
        """What the budget paid for this model's run."""
        return together(*(payment.event for payment in self.paid_for if payment.run == self.run))

    @property
    def total(self) -> Event:
        """Everything that the budget paid for, as one event."""
        return Composed(tuple(payment.event for payment in self.paid_for))


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditResult:
    """An attack on the method under its plan: the ε that it shows to leak at least, at this confidence."""

    method: str
    epsilon_lower_bound: float
    confidence: float

    def __post_init__(self) -> None:
        _check_fields(self)
        validate.delta(confidence=self.confidence)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedOverAccountant:
    """An accountant whose number was not used, and why."""

    accountant: str
    reason: str

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """One released model's guarantee. Build it with ``issuing``; trust no file that ``checking`` has not passed."""

    issued_on: str
    library_version: str
    epsilon: float
    delta: float
    adjacency: Adjacency
    event: Event  # all that the plan allowed, at its largest number of steps, and what choosing the settings cost
    claim: StatedClaim
    accounting_version: str
    passed_over: tuple[PassedOverAccountant, ...]
    ex_post: ExPost | None
    published_claims: tuple[StatedClaim, ...]
    settings_cost: Event | None
    budget: SharedBudget | None
    assumptions: tuple[str, ...]
    audit: AuditResult | None
    stated: Statements

    def __post_init__(self) -> None:
        _check_fields(self)
        validate.delta(delta=self.delta)
        _calendar_day("issued_on", self.issued_on)
        events = [self.event]
        if self.ex_post is not None:
            events.append(self.ex_post.event)
        if self.budget is not None:
            events += [self.budget.reserved, self.budget.total]
        given = len(distinct_events(events))
        if given > MOST_EVENTS:
            raise InvalidValue("events", allowed=f"at most {MOST_EVENTS} distinct ones in one certificate", given=given)


def distinct_events(events: Iterable[Event]) -> set[Event]:
    """Every event that something is counted for, once each, those within a repeated selection included."""
    found: set[Event] = {atom for event in events for atom in counted(event)}
    within = [atom.event for atom in found if isinstance(atom, RepeatAndSelect)]
    return found | distinct_events(within) if within else found


def one_line(name: str, value: object) -> str:
    """A line of text that a terminal shows as it is: certificates come from strangers and are printed."""
    line = validate.text(**{name: value})
    if any(unicodedata.category(mark) in ("Cc", "Cf", "Cs", "Zl", "Zp") or mark in _UNSEEN for mark in line):
        raise InvalidValue(name, allowed="one line of text without control or invisible characters", given=value)
    return line


_UNSEEN = frozenset("\u115f\u1160\u3164\uffa0")  # letters by their category, and blank on every screen


def _check_fields(value: object) -> None:
    """Check fields by their types: one line of text, a finite number that is not negative, a count, an event."""
    for name, hint in get_type_hints(type(value)).items():
        given = getattr(value, name)
        if get_origin(hint) is tuple and not isinstance(given, tuple):
            raise InvalidValue(name, allowed="a tuple", given=given)
        for item in given if isinstance(given, tuple) else (given,):
            _check_value(set(get_args(hint)) or {hint}, name, item)


def _check_value(kinds: set[Any], name: str, value: object) -> None:
    if value is None and type(None) in kinds:
        return
    if set(EVENT_TYPES) <= kinds:
        if not isinstance(value, EVENT_TYPES):
            raise InvalidValue(name, allowed="an event", given=value)
        one_line(name, str(value))  # an event may carry a reason in words
    elif str in kinds:
        one_line(name, value)
    elif float in kinds:
        validate.non_negative(**{name: value})
    elif int in kinds:
        validate.count(minimum=1, **{name: value})


def _calendar_day(name: str, value: object) -> None:
    allowed = "a day such as 2026-01-31"
    try:
        day = date.fromisoformat(validate.text(**{name: value}))
    except ValueError as error:
        raise InvalidValue(name, allowed=allowed, given=value) from error
    if day.isoformat() != value:  # Python reads other spellings too; a certificate has one
        raise InvalidValue(name, allowed=allowed, given=value)


# The JSON form. Keys are the fields' names, and values are read by the fields' types: an unknown, missing or doubled
# key, a wrong type, NaN and a newer format are each refused by name. Whether a file is true is for ``checking``.

FORMAT = "lehr-certificate"
FORMAT_VERSION = 2  # since 2, a budget says what it reserved for the run
_CLAIM_FIELDS = ("epsilon", "delta", "adjacency", "accountant", "theorem", "premises", "proof")


def write_certificate(path: str | os.PathLike[str], certificate: Certificate, *, overwrite: bool = False) -> None:
    """Write the certificate atomically; an existing file is replaced only with ``overwrite``."""
    strict_json.write(path, certificate_to_json(certificate), overwrite=overwrite)


def read_certificate(path: str | os.PathLike[str]) -> Certificate:
    """The certificate at ``path``, or ``StoreError`` where there is none."""
    return strict_json.read(path, certificate_from_json)


def certificate_to_json(certificate: Certificate) -> dict[str, object]:
    return {"format": FORMAT, "format_version": FORMAT_VERSION, **_object(certificate)}


def certificate_from_json(shape: object) -> Certificate:
    if not isinstance(shape, dict) or shape.get("format") != FORMAT:
        given = shape.get("format") if isinstance(shape, dict) else type(shape).__name__
        raise InvalidValue("certificate", allowed=f"an object whose format is {FORMAT}", given=given)
    version = shape.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:  # neither true nor 1.0
        raise InvalidValue("format_version", allowed=f"{FORMAT_VERSION}; another one needs another Lehr", given=version)
    rest = {name: value for name, value in shape.items() if name not in ("format", "format_version")}
    certificate: Certificate = _read(Certificate, "certificate", rest)
    return certificate


def statements_from_json(shape: object) -> Statements:
    """The statements of a JSON form, as a run's configuration has them too."""
    stated: Statements = _read(Statements, "stated", shape)
    return stated


def _object(value: object) -> dict[str, object]:
    if isinstance(value, StatedClaim):
        claim = {name: _value(getattr(value.claim, name)) for name in _CLAIM_FIELDS}
        return {"kind": value.kind, **claim, "proof_sha256": value.proof_sha256}
    assert is_dataclass(value)
    return {field.name: _value(getattr(value, field.name)) for field in fields(value)}


def _value(value: object) -> object:
    match value:
        case Enum():
            return value.value
        case tuple():
            return [_value(item) for item in value]
        case _ if isinstance(value, EVENT_TYPES):
            return events.to_json(value)  # type: ignore[arg-type]
        case _ if is_dataclass(value):
            return _object(value)
        case _:
            return value


def _read(kind: Any, name: str, shape: object) -> Any:
    """A dataclass from a JSON object with exactly its fields."""
    if kind is StatedClaim:
        given = strict_json.fields(name, shape, ("kind", *_CLAIM_FIELDS, "proof_sha256"))
        stated = validate.one_of(KINDS, kind=given["kind"])
        hints = get_type_hints(Claim)
        values = {field: _read_value(hints[field], field, given[field]) for field in _CLAIM_FIELDS}
        sha256 = _read_value(str | None, "proof_sha256", given["proof_sha256"])
        return StatedClaim(kind=stated, claim=Claim(**values, is_estimate=stated == "estimate"), proof_sha256=sha256)
    hints = get_type_hints(kind)
    given = strict_json.fields(name, shape, hints)
    return kind(**{field: _read_value(hint, field, given[field]) for field, hint in hints.items()})


def _read_value(hint: Any, name: str, value: object) -> Any:
    """A value of a field's type."""
    options = set(get_args(hint))
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        return strict_json.list_of(name, value, lambda one: _read_value(item, name, one))
    if type(None) in options:
        rest = options - {type(None)}
        return None if value is None else _read_value(Event if len(rest) > 1 else rest.pop(), name, value)
    if hint == Event:
        return events.from_json(value)
    if is_dataclass(hint):
        return _read(hint, name, value)
    if issubclass(hint, Enum):
        words = {member.value: member for member in hint}
        return words[validate.one_of(words, **{name: value})]
    if hint is float:
        return validate.non_negative(**{name: value})
    if hint is int:
        return validate.count(minimum=1, **{name: value})
    if not isinstance(value, str):
        raise InvalidValue(name, allowed="a string", given=value)
    return value


# The text. Its headings are the questions that NIST SP 800-226 tells a reader to ask.

WIDTH = 80

SETTINGS_IN_WORDS = {
    "fixed": "They were fixed before any data was seen.",
    "public": "They were chosen on public data.",
    "private": "They were chosen on the private data; the guarantee above includes the cost of that.",
}


def certificate_text(certificate: Certificate, *, mismatches: Sequence[str] = ()) -> str:
    """The certificate as text, in lines of at most 80 characters; ``mismatches`` that ``checking`` found come first."""
    heading = "PRIVACY CERTIFICATE"
    if mismatches:
        heading = f"THIS PRIVACY CERTIFICATE DOES NOT HOLD\n{_body(mismatches)}\n\nDo not believe what it says:"
    sections = (f"{question}\n{_body(answer(certificate))}" for question, answer in _QUESTIONS.items())
    return "\n\n".join((heading, *sections)) + "\n"


def _who_is_protected(certificate: Certificate) -> Iterable[str]:
    stated = certificate.stated
    yield f"The unit of privacy is {stated.unit_of_privacy}; data sets are neighbours by {certificate.adjacency.value}."
    if stated.records_per_person is None:
        yield "The number of records per person is not stated. A person with several records is protected less."
    elif stated.records_per_person > 1:
        yield f"One person may have {stated.records_per_person} records and is then protected less than one record."
    else:
        yield "Each person has at most one record."


def _how_well(certificate: Certificate) -> Iterable[str]:
    yield guarantee_text(
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        adjacency=certificate.adjacency,
        unit=certificate.stated.unit_of_privacy,
    )
    records = certificate.stated.records
    if records is not None and (caution := delta_warning(certificate.delta, records=records)) is not None:
        yield f"Caution: {caution}."
    if certificate.claim.claim.accountant == FILTER:
        yield "This is the limit of the budget below, for everything that it paid for together."
    else:
        yield "It holds for the largest number of steps that the plan allowed, however many were taken."
    if certificate.ex_post is not None:
        yield (
            f"Ex post, not a guarantee: the steps that were charged ({certificate.ex_post.event}) would have cost "
            f"ε = {at_most(certificate.ex_post.epsilon)} as a plan of their own."
        )


def _why(certificate: Certificate) -> Iterable[str]:
    claim = certificate.claim.claim
    yield f"What was done to the records: {certificate.event}."
    yield f"Theorem: {claim.theorem}."
    yield f"Proof: {claim.proof}, SHA-256 {certificate.claim.proof_sha256}."
    for premise in claim.premises:
        if premise.standing is Standing.MET:
            yield f"Met by the code: {premise.statement}."
    yield f"Accountant: {claim.accountant} ({certificate.accounting_version})."
    for other in certificate.passed_over:
        yield f"Not used: {other.accountant}, {other.reason}."


def _assumed(certificate: Certificate) -> Iterable[str]:
    return (f"Assumed: {statement}." for statement in certificate.assumptions)


def _trusted(certificate: Certificate) -> Iterable[str]:
    yield f"Who sees the raw data: {certificate.stated.raw_data_seen_by}."
    yield f"How the data was collected: {certificate.stated.data_collection}."


def _public(certificate: Certificate) -> Iterable[str]:
    stated = certificate.stated
    yield "Released: " + "; ".join(stated.released) + "."
    yield "Treated as public: " + ("; ".join(stated.treated_as_public) or "nothing was stated") + "."
    if stated.records is not None:
        yield f"Number of records, stated as public: {stated.records:,}."


def _settings(certificate: Certificate) -> Iterable[str]:
    yield SETTINGS_IN_WORDS[certificate.stated.settings_chosen_on]
    yield from how_chosen(certificate)


def how_chosen(certificate: Certificate) -> Iterable[str]:
    """How the choice of settings on private data was paid for."""
    if certificate.settings_cost is not None:
        yield f"Choosing them cost: {certificate.settings_cost}."
        if (trials := _equal_trials(certificate)) is not None:
            yield composition_in_words(trials)
    for atom in counted(certificate.event):
        if isinstance(atom, RepeatAndSelect):
            yield selection_in_words(atom)


def _equal_trials(certificate: Certificate) -> int | None:
    """The number of equal trials that the model was chosen from; None where they were not equal."""
    assert certificate.settings_cost is not None
    cost = counted(certificate.settings_cost)
    own = counted(rest(certificate.event, certificate.settings_cost))
    times = {cost.get(atom, 0) / count for atom, count in own.items()}
    if own.keys() != cost.keys() or len(times) != 1:
        return None
    [others] = times
    return int(others) + 1 if others.is_integer() else None


def _what_else(certificate: Certificate) -> Iterable[str]:
    budget = certificate.budget
    if budget is None:
        yield "No budget was kept: this certificate does not say what else was done with the same records."
        return
    yield (
        f"The budget of {budget.dataset!r} is ε = {exactly(budget.epsilon)} at δ = {exactly(budget.delta)}; "
        f"ε = {at_most(budget.spent_epsilon)} of it is spent (mode: {budget.mode})."
    )
    yield from (_payment(payment, this_run=budget.run) for payment in budget.paid_for)


def _payment(payment: PaidFor, *, this_run: str) -> str:
    mark = " (this model)" if payment.run == this_run else ""
    return f"Paid for {payment.run!r}{mark}: {payment.event}."


def _published(certificate: Certificate) -> Iterable[str]:
    if not certificate.published_claims:
        yield "None."
    yield from map(_no_guarantee, certificate.published_claims)


def _no_guarantee(stated: StatedClaim) -> str:
    reasons = "; ".join(f"{premise.statement}: {premise.because}" for premise in stated.claim.broken)
    why = f" Does not hold here: {reasons}." if reasons else ""
    return f"NOT A GUARANTEE ({stated.kind}): ε = {at_most(stated.claim.epsilon)} by {stated.claim.theorem}.{why}"


def _tested(certificate: Certificate) -> Iterable[str]:
    audit = certificate.audit
    if audit is None:
        yield "No audit is reported."
        return
    yield (
        f"An attack ({audit.method}) shows ε of at least {exactly(audit.epsilon_lower_bound)} with confidence "
        f"{exactly(audit.confidence)}. An audit can refute a guarantee but never prove one."
    )


def _checkable(certificate: Certificate) -> Iterable[str]:
    yield f"Issued on {certificate.issued_on} by Lehr {certificate.library_version}."
    yield "`lehr certificate check FILE` recomputes every ε from the events."
    yield (
        "The issuer alone vouches for this: that the events took place, the statements about the data, the audit, and "
        "other published numbers."
    )


_QUESTIONS: dict[str, Callable[[Certificate], Iterable[str]]] = {
    "Who is protected?": _who_is_protected,
    "How well?": _how_well,
    "Why does that follow?": _why,
    "What does it assume?": _assumed,
    "Who must be trusted with the raw data?": _trusted,
    "What was released, and what was treated as public?": _public,
    "On which data were the settings chosen?": _settings,
    "What else was done with the same records?": _what_else,
    "Which other published numbers do not hold here?": _published,
    "Was it attacked?": _tested,
    "How can this be checked?": _checkable,
}


def _body(lines: Iterable[str]) -> str:
    return "\n".join(map(_wrapped, lines))


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
