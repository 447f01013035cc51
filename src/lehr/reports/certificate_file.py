"""certificate.json: the JSON form of a certificate, and the file.

The keys are the fields' names. Reading goes through one closed table: an unknown, missing or doubled key, a wrong type,
NaN and a newer format are each refused by name. Whether a well formed file is true is for ``checking``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from lehr import events, validate
from lehr.claims import Claim, Premise, Standing
from lehr.errors import InvalidValue
from lehr.events import EVENT_TYPES, Adjacency, Event
from lehr.files import json_file, strict_json
from lehr.reports.certificate import (
    KINDS,
    AuditResult,
    Certificate,
    ExPost,
    PaidFor,
    PassedOverAccountant,
    SharedBudget,
    StatedClaim,
    Statements,
)

FORMAT = "lehr-certificate"
FORMAT_VERSION = 2  # since 2, a budget says what it reserved for the run

Reader = Callable[[str, object], object]  # of the field's name, for the error, and its value


def write(path: str | os.PathLike[str], certificate: Certificate, *, overwrite: bool = False) -> None:
    """Put the certificate at ``path``, whole or not at all; over another file only with ``overwrite``."""
    json_file.write(path, to_json(certificate), overwrite=overwrite)


def read(path: str | os.PathLike[str]) -> Certificate:
    """The certificate at ``path``, or ``StoreError`` where there is none."""
    return json_file.read(path, from_json)


def to_json(certificate: Certificate) -> dict[str, object]:
    """The JSON form of a certificate."""
    return {"format": FORMAT, "format_version": FORMAT_VERSION, **_object(certificate)}


def from_json(shape: object) -> Certificate:
    """The certificate of a JSON form."""
    if not isinstance(shape, dict) or shape.get("format") != FORMAT:
        given = shape.get("format") if isinstance(shape, dict) else type(shape).__name__
        raise InvalidValue("certificate", allowed=f"an object whose format is {FORMAT}", given=given)
    version = shape.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:  # neither true nor 1.0
        raise InvalidValue("format_version", allowed=f"{FORMAT_VERSION}; another one needs another Lehr", given=version)
    rest = {name: value for name, value in shape.items() if name not in ("format", "format_version")}
    certificate = _read(Certificate, "certificate", rest)
    assert isinstance(certificate, Certificate)
    return certificate


def statements_from_json(shape: object) -> Statements:
    """The statements of a JSON form, as a run's configuration has them too."""
    stated = _read(Statements, "stated", shape)
    assert isinstance(stated, Statements)
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


def _read(kind: type, name: str, shape: object) -> object:
    return kind(**_read_fields(_READERS[kind], strict_json.fields(name, shape, _READERS[kind])))


def _read_fields(readers: Mapping[str, Reader], given: Mapping[str, object]) -> dict[str, object]:
    return {name: read_field(name, given[name]) for name, read_field in readers.items()}


def _read_claim(name: str, shape: object) -> StatedClaim:
    given = strict_json.fields(name, shape, ("kind", *_CLAIM_FIELDS, "proof_sha256"))
    kind = validate.one_of(KINDS, kind=given["kind"])
    claim = Claim(**_read_fields(_READERS[Claim], given), is_estimate=kind == "estimate")  # type: ignore[arg-type]
    return StatedClaim(kind=kind, claim=claim, proof_sha256=_text_or_none("proof_sha256", given["proof_sha256"]))


def _number(name: str, value: object) -> float:
    return validate.non_negative(**{name: value})


def _whole_or_none(name: str, value: object) -> int | None:
    return None if value is None else validate.count(minimum=1, **{name: value})


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValue(name, allowed="a string", given=value)
    return value


def _text_or_none(name: str, value: object) -> str | None:
    return None if value is None else _text(name, value)


def _event(_name: str, value: object) -> Event:
    return events.from_json(value)


def _word(kind: type[Enum]) -> Reader:
    words = {member.value: member for member in kind}
    return lambda name, value: words[validate.one_of(words, **{name: value})]


def _part(kind: type) -> Reader:
    return lambda name, value: _read(kind, name, value)


def _maybe(read_value: Reader) -> Reader:
    return lambda name, value: None if value is None else read_value(name, value)


def _list(read_item: Reader) -> Reader:
    return lambda name, value: strict_json.list_of(name, value, lambda item: read_item(name, item))


_READERS: Mapping[type, Mapping[str, Reader]] = {
    Premise: {"statement": _text, "standing": _word(Standing), "because": _text},
    Claim: {
        "epsilon": _number,
        "delta": _number,
        "adjacency": _word(Adjacency),
        "accountant": _text,
        "theorem": _text,
        "premises": _list(_part(Premise)),
        "proof": _text_or_none,
    },
    Statements: {
        "settings_chosen_on": _text,
        "unit_of_privacy": _text,
        "records_per_person": _whole_or_none,
        "records": _whole_or_none,
        "treated_as_public": _list(_text),
        "released": _list(_text),
        "raw_data_seen_by": _text,
        "data_collection": _text,
    },
    ExPost: {"event": _event, "epsilon": _number, "meaning": _text},
    PaidFor: {"run": _text, "event": _event},
    SharedBudget: {
        "dataset": _text,
        "run": _text,
        "epsilon": _number,
        "delta": _number,
        "adjacency": _word(Adjacency),
        "spent_epsilon": _number,
        "mode": _text,
        "orders": _list(_number),
        "reserved": _event,
        "paid_for": _list(_part(PaidFor)),
    },
    AuditResult: {"method": _text, "epsilon_lower_bound": _number, "confidence": _number},
    PassedOverAccountant: {"accountant": _text, "reason": _text},
    Certificate: {
        "issued_on": _text,
        "library_version": _text,
        "epsilon": _number,
        "delta": _number,
        "adjacency": _word(Adjacency),
        "event": _event,
        "claim": _read_claim,
        "accounting_version": _text,
        "passed_over": _list(_part(PassedOverAccountant)),
        "ex_post": _maybe(_part(ExPost)),
        "published_claims": _list(_read_claim),
        "settings_cost": _maybe(_event),
        "budget": _maybe(_part(SharedBudget)),
        "assumptions": _list(_text),
        "audit": _maybe(_part(AuditResult)),
        "stated": _part(Statements),
    },
}
_CLAIM_FIELDS = tuple(_READERS[Claim])
