"""``--set``: any key of a configuration file, said on the command line.

>>> tables(["salvage=true", "model.image_side=8", "cooling=classic"])
{'method': {'salvage': True, 'cooling': 'classic'}, 'model': {'image_side': 8}}
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from lehr.errors import InvalidValue

METHOD = "method"  # the table of a key that names none
_FORM = re.compile(r"(?:([a-z]+)\.)?([a-z][a-z_]*)=(.+)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w .()/,-]*")


def tables(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The tables of what was given as ``key=value`` or ``table.key=value``, with values as TOML has them.

    A word needs no quotation marks, which a shell would take away.
    """
    found: dict[str, dict[str, Any]] = {}
    for setting in given:
        form = _FORM.fullmatch(setting.strip())
        if form is None:
            raise InvalidValue("set", allowed="key=value for the method, or table.key=value", given=setting)
        table, key, value = form.groups()
        keys = found.setdefault(table or METHOD, {})
        if key in keys:
            raise InvalidValue("set", allowed="each key once", given=setting)
        keys[key] = _value(value.strip(), setting)
    return found


def _value(text: str, setting: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if _WORD.fullmatch(text):
            return text
        allowed = 'a value as in a file: 4, 0.5, true, [1, 2], "word" or { kind = "constant" }'
        raise InvalidValue("set", allowed=allowed, given=setting) from error
    if read.keys() != {"value"}:
        raise InvalidValue("set", allowed="one value", given=setting)
    return read["value"]
