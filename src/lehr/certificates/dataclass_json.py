"""Dataclasses as JSON objects: keys are the names of fields, and values are read by the types of fields.

Unknown and missing keys, other types and NaN are refused by name. A class checks its own values when it is built.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from lehr import validate
from lehr.accounting import events
from lehr.accounting.events import EVENT_TYPES
from lehr.errors import InvalidValue
from lehr.files import strict_json

_PLAIN = {str: "a string", int: "a whole number", bool: "true or false"}


def to_json(value: object) -> Any:
    """The JSON form of a dataclass or of a value of one of its fields."""
    match value:
        case Enum():
            return value.value
        case tuple():
            return [to_json(item) for item in value]
        case _ if isinstance(value, EVENT_TYPES):
            return events.to_json(value)  # type: ignore[arg-type]
        case _ if is_dataclass(value):
            return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    return value


def from_json(hint: Any, name: str, shape: object) -> Any:
    """The value of this type that has this JSON form."""
    if get_origin(hint) is tuple:
        return strict_json.list_of(name, shape, lambda item: from_json(get_args(hint)[0], name, item))
    kinds = set(get_args(hint)) or {hint}
    if shape is None and NoneType in kinds:
        return None
    if set(EVENT_TYPES) <= kinds:
        return events.from_json(shape)
    [kind] = kinds - {NoneType}
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        given = strict_json.fields(name, shape, hints)
        return kind(**{field: from_json(hints[field], field, value) for field, value in given.items()})
    if issubclass(kind, Enum):
        words = {member.value: member for member in kind}
        return words[validate.one_of(words, **{name: shape})]
    if kind is float:
        return shape if shape == math.inf else validate.non_negative(**{name: shape})
    if type(shape) is not kind:
        raise InvalidValue(name, allowed=_PLAIN[kind], given=shape)
    return shape
