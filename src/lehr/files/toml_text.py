"""Tables of words and numbers as TOML, which Python reads and does not write.

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

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(tables: Mapping[str, Mapping[str, object]]) -> str:
    """The tables one after the other, empty ones left out; what is a table within a table is written in one line."""
    parts = [
        "\n".join([f"[{_key(name)}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.items())]) + "\n"
        for name, table in tables.items()
        if table
    ]
    return "\n".join(parts)


def comment(text: str) -> str:
    """The text as lines that TOML does not read."""
    return "".join(f"# {_printable(line)}\n" for line in text.splitlines())


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
        case Mapping() if value:
            return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }"
        case Mapping():
            return "{}"
        case _:
            raise InvalidValue(
                "setting", allowed="a word, a number, a list or a table, to be written as TOML", given=value
            )


def _key(name: object) -> str:
    text = str(name)
    return text if _BARE.fullmatch(text) else _text(text)


def _text(text: str) -> str:
    """A basic string. JSON escapes what TOML wants escaped, but for the last of the control characters."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable(line: str) -> str:
    return "".join(mark if mark.isprintable() else " " for mark in line)
