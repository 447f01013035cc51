"""JSON read as strictly as it is written: no NaN, no doubled key, no unknown or missing field.

>>> dumps({"epsilon": 2.5})
'{\\n  "epsilon": 2.5\\n}'
>>> loads('{"epsilon": NaN}')
Traceback (most recent call last):
...
lehr.errors.InvalidValue: JSON must be without NaN and Infinity; given: 'NaN'
>>> fields("plan", {"steps": 3, "step": 4}, {"steps"})
Traceback (most recent call last):
...
lehr.errors.InvalidValue: plan must be an object with the fields steps; given: 'unknown: step'
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection
from typing import Any, NoReturn, TypeVar

from lehr.errors import InvalidValue

INFINITY = "infinity"  # JSON has no number for it; every file and output of ours writes this word
DEEPEST = 64  # levels of nesting; ours need a dozen, and a file of thousands would exhaust the stack of every reader

Value = TypeVar("Value")


def dumps(value: object) -> str:
    """Indented JSON. Infinity becomes the word ``infinity``; NaN is refused, because nothing here may be NaN."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=2)


def loads(text: str) -> object:
    """The value of a JSON text; whatever JSON itself does not allow is refused, and doubled keys too."""
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles)
    except InvalidValue:
        raise
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        raise InvalidValue("JSON", allowed="well formed", given=str(error)) from error
    refuse_depth(value)
    return value


def fields(name: str, shape: object, expected: Collection[str]) -> dict[str, object]:
    """The fields of an object that has exactly the ``expected`` ones."""
    if not isinstance(shape, dict):
        raise InvalidValue(name, allowed="an object", given=shape)
    wrong = [f"missing: {key}" for key in expected if key not in shape]
    wrong += [f"unknown: {key}" for key in shape if key not in expected]
    if wrong:
        raise InvalidValue(name, allowed="an object with the fields " + ", ".join(expected), given="; ".join(wrong))
    return shape


def an_object(name: str, shape: object) -> dict[str, Any]:
    """An object, whatever its fields."""
    if not isinstance(shape, dict):
        raise InvalidValue(name, allowed="an object", given=shape)
    return shape


def a_table(shape: object) -> dict[str, Any]:
    """An object, whatever its fields."""
    if not isinstance(shape, dict):
        raise InvalidValue("file", allowed="a JSON object", given=type(shape).__name__)
    return shape


def list_of(name: str, shape: object, read: Callable[[object], Value]) -> tuple[Value, ...]:
    """Every item of a JSON list, read by ``read``."""
    if not isinstance(shape, list):
        raise InvalidValue(name, allowed="a list", given=shape)
    return tuple(read(item) for item in shape)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return INFINITY if isinstance(value, float) and value == math.inf else value


def refuse_depth(value: object, levels_left: int = DEEPEST) -> None:
    """Raise ``InvalidValue`` where lists and mappings are nested deeper than ``DEEPEST`` levels."""
    if not isinstance(value, dict | list):
        return
    if levels_left == 0:
        raise _too_deep()
    for item in value.values() if isinstance(value, dict) else value:
        refuse_depth(item, levels_left - 1)


def _too_deep() -> InvalidValue:
    return InvalidValue("file", allowed=f"nested at most {DEEPEST} levels deep", given="more levels")


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidValue("JSON", allowed="without NaN and Infinity", given=word)


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read: dict[str, object] = {}
    for key, value in pairs:
        if key in read:
            raise InvalidValue("JSON", allowed="an object that names each key once", given=key)
        read[key] = value
    return read
