"""Tables as TOML text, which Python's standard library reads and does not write.

>>> print(written({"data": {"name": "digits"}, "training": {"averaging": {"kind": "exponential", "decay": 0.99}}}))
[data]
name = "digits"
<BLANKLINE>
[training]
averaging = { kind = "exponential", decay = 0.99 }
<BLANKLINE>
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import PurePath

from lehr.errors import InvalidValue


def written(tables: Mapping[str, Mapping[str, object]]) -> str:
    """The tables one after the other, empty ones left out; tables within them are written inline."""
    return "\n".join(
        "".join([f"[{_key(name)}]\n", *(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())])
        for name, table in tables.items()
        if table
    )


def comment(text: str) -> str:
    """The text as comment lines."""
    lines = ("".join(mark if mark.isprintable() else " " for mark in line) for line in text.splitlines())
    return "".join(f"# {line}\n" for line in lines)


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case str() | PurePath():
            return _text(str(value))
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
        case Mapping():
            return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
        case _:
            allowed = "a word, a number, a list or a table, to be written as TOML"
            raise InvalidValue("setting", allowed=allowed, given=value)


def _key(name: object) -> str:
    return str(name) if re.fullmatch(r"[A-Za-z0-9_-]+", str(name)) else _text(str(name))


def _text(text: str) -> str:
    """A basic string. JSON escapes what TOML wants escaped, but for the last of the control characters."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
