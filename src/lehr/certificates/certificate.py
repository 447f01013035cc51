"""The guarantee of a released model, as one file that a stranger can check.

The fields answer the questions that NIST SP 800-226 asks of a privacy guarantee: who is protected (``adjacency``,
``stated.unit_of_privacy``), how well (``epsilon``, ``delta``), why that follows (``event``, ``theorem``, ``premises``),
on what it rests (``assumptions``), who must be trusted with the raw data, and what else was done with the same records.

Three kinds of content are kept apart: what Lehr computed and can compute again, what the issuer stated and nobody can
check (``stated``), and numbers that are no guarantee (``ex_post``, ``published_claims``). All numbers are public: there
is no fingerprint of the data, and no count of records but the one that the issuer states.
"""

from __future__ import annotations

import os
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from datetime import date
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import jinja2

from lehr import validate
from lehr.accounting.claims import Claim, Premise
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
from lehr.certificates import dataclass_json
from lehr.certificates.guarantee import delta_warning, guarantee_text
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.budget import FILTER, SINGLE_PLAN
from lehr.planning.search_cost import composition_in_words, selection_in_words
from lehr.rounding import at_most, exactly

NOT_STATED, ONE_RECORD = "not stated", "one record"
EX_POST_MEANING = "ex post: what was done would have cost this had it been the plan; not a guarantee"
SETTINGS_CHOSEN_ON = {
    "fixed": "They were fixed before any data was seen.",
    "public": "They were chosen on public data.",
    "private": "They were chosen on the private data; the guarantee above includes the cost of that.",
}
_OF_USERS = "one user with all their records"  # as ``Plan.unit_text`` begins
_IN_THE_RUN = "of them in the whole run"  # as it ends where the records of users are drawn one by one
BUDGET_MODES = (FILTER, SINGLE_PLAN)
MOST_EVENTS, MOST_ORDERS = 100, 20  # a stranger's file must not keep its checker busy for hours
FORMAT, FORMAT_VERSION = "lehr-certificate", 3
WIDTH = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """What only a person can say. Lehr passes it on and does not vouch for it."""

    settings_chosen_on: str  # "fixed": before any data was seen; "public" data; or "private" data, and then it costs
    unit_of_privacy: str = ONE_RECORD
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

    def of_unit(self, unit: str) -> Statements:
        """The same statements about a run with this unit of privacy; a name of the issuer's own for it stays."""
        if unit == ONE_RECORD or self.unit_of_privacy.endswith(unit):
            return self
        own = "" if self.unit_of_privacy == ONE_RECORD else f"{self.unit_of_privacy}: "
        return replace(self, unit_of_privacy=f"{own}{unit}")


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


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Certificate:
    """The guarantee of a released model. Build it with ``issuing``; trust no file that ``checking`` has not passed."""

    issued_on: str
    library_version: str
    accounting_version: str
    epsilon: float
    delta: float
    adjacency: Adjacency
    event: Event  # all that the plan allowed, at its largest number of steps, and what choosing the settings cost
    accountant: str
    theorem: str
    premises: tuple[Premise, ...]
    proof: str
    proof_sha256: str
    assumptions: tuple[str, ...]
    ex_post: ExPost | None
    published_claims: tuple[Claim, ...]
    settings_cost: Event | None
    budget: SharedBudget | None
    audit: AuditResult | None
    stated: Statements

    def __post_init__(self) -> None:
        _check_fields(self)
        validate.delta(delta=self.delta)
        if not re.fullmatch("[0-9a-f]{64}", self.proof_sha256):
            raise InvalidValue("proof_sha256", allowed="64 hexadecimal digits", given=self.proof_sha256)
        if not _is_day(self.issued_on):
            raise InvalidValue("issued_on", allowed="a day such as 2026-01-31", given=self.issued_on)
        events = [self.event, *([] if self.ex_post is None else [self.ex_post.event])]
        if self.budget is not None:
            events += [self.budget.reserved, self.budget.total]
        given = len(distinct_events(events))
        if given > MOST_EVENTS:
            raise InvalidValue("events", allowed=f"at most {MOST_EVENTS} distinct ones in one certificate", given=given)

    @property
    def claim(self) -> Claim:
        """The guarantee with its theorem and premises. Unless a premise is broken, it is proven."""
        names = ("epsilon", "delta", "adjacency", "accountant", "theorem", "premises", "proof")
        return Claim(**{name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        unit = self.stated.unit_of_privacy
        return f"Certificate({self.claim!r} for {unit}, issued on {self.issued_on})"


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
        if value != "" or name != "because":  # a premise that holds needs no reason
            one_line(name, value)
    elif float in kinds:
        validate.non_negative(**{name: value})
    elif int in kinds:
        validate.count(minimum=1, **{name: value})
    elif is_dataclass(value):
        _check_fields(value)


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text  # Python reads other spellings too; a certificate has one
    except ValueError:
        return False


# The JSON form. An unknown, missing or doubled key, a wrong type, NaN and another format are each refused by name.
# Whether a file is true is for ``checking``.


def write_certificate(path: str | os.PathLike[str], certificate: Certificate, *, overwrite: bool = False) -> None:
    """Write the certificate atomically; an existing file is replaced only with ``overwrite``."""
    strict_json.write(path, certificate_to_json(certificate), overwrite=overwrite)


def read_certificate(path: str | os.PathLike[str]) -> Certificate:
    """The certificate at ``path``, or ``StoreError`` where there is none."""
    return strict_json.read(path, certificate_from_json)


def certificate_to_json(certificate: Certificate) -> dict[str, object]:
    return {"format": FORMAT, "format_version": FORMAT_VERSION, **dataclass_json.to_json(certificate)}


def certificate_from_json(shape: object) -> Certificate:
    if not isinstance(shape, dict) or shape.get("format") != FORMAT:
        given = shape.get("format") if isinstance(shape, dict) else type(shape).__name__
        raise InvalidValue("certificate", allowed=f"an object whose format is {FORMAT}", given=given)
    version = shape.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:  # neither true nor 1.0
        raise InvalidValue("format_version", allowed=f"{FORMAT_VERSION}; another one needs another Lehr", given=version)
    content = {name: value for name, value in shape.items() if name not in ("format", "format_version")}
    certificate: Certificate = dataclass_json.from_json(Certificate, "certificate", content)
    return certificate


def statements_from_json(shape: object) -> Statements:
    """The statements of a JSON form, as a run's configuration has them too."""
    stated: Statements = dataclass_json.from_json(Statements, "stated", shape)
    return stated


# The text. Its headings are the questions that NIST SP 800-226 tells a reader to ask.


def certificate_text(certificate: Certificate, *, mismatches: Sequence[str] = ()) -> str:
    """The certificate as text, in lines of at most 80 characters; ``mismatches`` that ``checking`` found come first."""
    stated = certificate.stated
    text = render_template(
        "certificate.txt.jinja",
        certificate=certificate,
        mismatches=[" ".join(mismatch.split()) for mismatch in mismatches],
        guarantee=guarantee_text(
            epsilon=certificate.epsilon,
            delta=certificate.delta,
            adjacency=certificate.adjacency,
            unit=stated.unit_of_privacy,
        ),
        caution=None if stated.records is None else delta_warning(certificate.delta, records=stated.records),
        is_limit=certificate.accountant == FILTER,
        is_of_users=_OF_USERS in stated.unit_of_privacy,
        counts_records=_IN_THE_RUN in stated.unit_of_privacy or _OF_USERS not in stated.unit_of_privacy,
        settings=[SETTINGS_CHOSEN_ON[stated.settings_chosen_on], *how_chosen(certificate)],
    )
    return "\n".join(map(_wrap, text.splitlines())) + "\n"


def how_chosen(certificate: Certificate) -> Iterator[str]:
    """How the choice of settings on private data was paid for."""
    if certificate.settings_cost is not None:
        yield f"Choosing them cost: {certificate.settings_cost}."
        cost, own = counted(certificate.settings_cost), counted(rest(certificate.event, certificate.settings_cost))
        others = {cost.get(atom, 0) / count for atom, count in own.items()}
        if own.keys() == cost.keys() and len(others) == 1 and (trials := others.pop() + 1).is_integer():
            yield composition_in_words(int(trials))
    yield from (selection_in_words(atom) for atom in counted(certificate.event) if isinstance(atom, RepeatAndSelect))


def render_template(name: str, *, finalize: Callable[[object], object] | None = None, **values: object) -> str:
    """A text file of this package, filled. ``finalize`` turns each value into text, to escape it."""
    return _environment(finalize).get_template(name).render(**values)


@cache
def _environment(finalize: Callable[[object], object] | None) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lehr.certificates", "."),
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"at_most": at_most, "exactly": exactly}
    return environment


def _wrap(line: str) -> str:
    if not line.startswith("- "):
        return line
    text = line.removeprefix("- ")
    return textwrap.fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
