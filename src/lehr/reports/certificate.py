"""What a released model promises to the people in its data, as one file that a stranger can check.

The fields answer the questions that NIST SP 800-226 tells a reader to ask of a privacy guarantee: who is protected
(``stated.unit_of_privacy``, ``adjacency``), how well (``epsilon``, ``delta``), why that follows (``event``, ``claim``),
on what it rests (``assumptions``), who must be trusted with the raw data, and what else was done with the same records.

Three kinds of content are kept apart: what Lehr computed and can compute again, what the issuer stated and nobody can
check (``stated``), and numbers that are no guarantee (``ex_post``, ``published_claims``). It holds public numbers only:
no fingerprint of the data, and no count of records but the one that the issuer states.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date

from lehr import validate
from lehr.claims import Claim
from lehr.errors import InvalidValue
from lehr.events import EVENT_TYPES, NOTHING, Adjacency, Composed, Event, RepeatAndSelect, counted, together
from lehr.planning.budget import FILTER, SINGLE_PLAN

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
        for name in ("unit_of_privacy", "raw_data_seen_by", "data_collection"):
            one_line(name, getattr(self, name))
        for name in ("records_per_person", "records"):
            if getattr(self, name) is not None:
                validate.count(**{name: getattr(self, name)})
        _lines("treated_as_public", self.treated_as_public)
        _lines("released", self.released)

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
        validate.non_negative(epsilon=self.claim.epsilon)  # a claim may be infinite, a certificate's may not
        for name in ("accountant", "theorem"):
            one_line(name, getattr(self.claim, name))
        if self.claim.proof is not None:
            one_line("proof", self.claim.proof)
        _lines("premises", tuple(premise.statement for premise in self.claim.premises))
        _lines("because", tuple(premise.because for premise in self.claim.premises if premise.because != ""))
        if self.proof_sha256 is not None and not re.fullmatch("[0-9a-f]{64}", self.proof_sha256):
            raise InvalidValue("proof_sha256", allowed="64 hexadecimal digits", given=self.proof_sha256)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExPost:
    """What was done in the end, and its ε had that been the plan. Never a guarantee: a stop may depend on the data."""

    event: Event
    epsilon: float
    meaning: str = EX_POST_MEANING

    def __post_init__(self) -> None:
        _event("ex_post event", self.event)
        validate.non_negative(epsilon=self.epsilon)
        if self.meaning != EX_POST_MEANING:
            raise InvalidValue("ex_post meaning", allowed=f"the sentence {EX_POST_MEANING!r}", given=self.meaning)


@dataclass(frozen=True, kw_only=True, slots=True)
class PaidFor:
    """One thing that a budget paid for."""

    run: str
    event: Event

    def __post_init__(self) -> None:
        one_line("run", self.run)
        _event("paid_for event", self.event)


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
        one_line("dataset", self.dataset)
        one_line("run", self.run)
        validate.positive(epsilon=self.epsilon)
        validate.delta(delta=self.delta)
        validate.non_negative(spent_epsilon=self.spent_epsilon)
        validate.one_of(BUDGET_MODES, mode=self.mode)
        if len(self.orders) > MOST_ORDERS:
            raise InvalidValue("orders", allowed=f"at most {MOST_ORDERS} numbers", given=len(self.orders))
        for order in self.orders:
            validate.positive(order=order)
        _event("reserved", self.reserved)

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
        one_line("method", self.method)
        validate.non_negative(epsilon_lower_bound=self.epsilon_lower_bound)
        validate.delta(confidence=self.confidence)


@dataclass(frozen=True, kw_only=True, slots=True)
class PassedOverAccountant:
    """An accountant whose number was not used, and why."""

    accountant: str
    reason: str

    def __post_init__(self) -> None:
        one_line("accountant", self.accountant)
        one_line("reason", self.reason)


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
        validate.non_negative(epsilon=self.epsilon)
        validate.delta(delta=self.delta)
        _event("event", self.event)
        if self.settings_cost is not None:
            _event("settings_cost", self.settings_cost)
        _calendar_day("issued_on", self.issued_on)
        for name in ("library_version", "accounting_version"):
            one_line(name, getattr(self, name))
        _lines("assumptions", self.assumptions)
        _few_events(self)


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


def _lines(name: str, value: object) -> None:
    if not isinstance(value, tuple):
        raise InvalidValue(name, allowed="a tuple of lines of text", given=value)
    for line in value:
        one_line(name, line)


def _event(name: str, value: object) -> None:
    if not isinstance(value, EVENT_TYPES):
        raise InvalidValue(name, allowed="an event", given=value)
    one_line(name, str(value))  # an event may carry a reason in words


def _calendar_day(name: str, value: object) -> None:
    allowed = "a day such as 2026-01-31"
    try:
        day = date.fromisoformat(validate.text(**{name: value}))
    except ValueError as error:
        raise InvalidValue(name, allowed=allowed, given=value) from error
    if day.isoformat() != value:  # Python reads other spellings too; a certificate has one
        raise InvalidValue(name, allowed=allowed, given=value)


def _few_events(certificate: Certificate) -> None:
    ex_post, budget = certificate.ex_post, certificate.budget
    events = (
        certificate.event,
        NOTHING if ex_post is None else ex_post.event,
        NOTHING if budget is None else Composed((budget.reserved, budget.total)),
    )
    given = len(distinct_events(events))
    if given > MOST_EVENTS:
        raise InvalidValue("events", allowed=f"at most {MOST_EVENTS} distinct ones in one certificate", given=given)
