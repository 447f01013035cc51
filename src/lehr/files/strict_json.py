"""Strict JSON: no NaN, no duplicate key, no unknown or missing field. Texts, files, and files of JSON lines.

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
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import atomic

INFINITY = "infinity"  # JSON has no number for it; every file and output of ours writes this word
DEEPEST = 64  # levels of nesting; ours need a dozen, and a file of thousands would exhaust the stack of every reader
LARGEST_LINES = 256 * 1024**2  # bytes of a file of JSON lines

Value = TypeVar("Value")


def dumps(value: object) -> str:
    """Indented JSON. Infinity becomes the word ``infinity``; NaN is refused, because nothing here may be NaN."""
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=2)


def loads(text: str) -> object:
    """The value of a JSON text; whatever JSON itself does not allow is refused, and duplicate keys too."""
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
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
    shape = check_object(name, shape)
    wrong = [f"missing: {key}" for key in expected if key not in shape]
    wrong += [f"unknown: {key}" for key in shape if key not in expected]
    if wrong:
        raise InvalidValue(name, allowed="an object with the fields " + ", ".join(expected), given="; ".join(wrong))
    return shape


def check_object(name: str, shape: object) -> dict[str, Any]:
    """An object, whatever its fields."""
    if not isinstance(shape, dict):
        raise InvalidValue(name, allowed="an object", given=shape)
    return shape


def check_table(shape: object) -> dict[str, Any]:
    """An object, whatever its fields, for ``read``."""
    return check_object("file", shape)


def list_of(name: str, shape: object, read: Callable[[object], Value]) -> tuple[Value, ...]:
    """Every item of a JSON list, read by ``read``."""
    if not isinstance(shape, list):
        raise InvalidValue(name, allowed="a list", given=shape)
    return tuple(read(item) for item in shape)


def refuse_depth(value: object, levels_left: int = DEEPEST) -> None:
    """Raise ``InvalidValue`` where lists and mappings are nested deeper than ``DEEPEST`` levels."""
    if not isinstance(value, dict | list):
        return
    if levels_left == 0:
        raise _too_deep()
    for item in value.values() if isinstance(value, dict) else value:
        refuse_depth(item, levels_left - 1)


def write(path: str | os.PathLike[str], shape: object, *, overwrite: bool = False) -> None:
    """Put the JSON of ``shape`` at ``path``; over another file only with ``overwrite``."""
    atomic.write(path, text(shape), overwrite=overwrite)


def text(shape: object) -> str:
    """The text that ``write`` puts into a file."""
    return dumps(shape) + "\n"


def read(path: str | os.PathLike[str], from_json: Callable[[object], Value]) -> Value:
    """The file's value, read by ``from_json``. ``StoreError`` names the file where that is impossible."""
    try:
        return from_json(loads(atomic.read(path)))
    except InvalidValue as error:
        raise StoreError(f"cannot use {path}: {error}") from error


def append_line(path: Path, shape: Mapping[str, object], *, mode: int = 0o644) -> None:
    """Add a line and flush it to the disk, in place of one that a crash cut off. ``mode`` is that of a new file."""
    line = _line(shape)
    try:
        is_new = not path.exists()
        with open(os.open(path, os.O_RDWR | os.O_CREAT, mode), "r+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end > LARGEST_LINES:
                raise StoreError(f"cannot write {path}: it has more than {LARGEST_LINES:,} bytes")
            file.seek(max(end - 1, 0))
            if file.read(1) not in (b"", b"\n"):
                file.seek(0)
                end = file.read().rfind(b"\n") + 1
            file.truncate(file.seek(end))
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            atomic.flush_folder(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def read_lines(path: Path) -> list[object]:
    """Every complete line; none where there is no file yet. A last line that a crash cut off is left out."""
    if not os.path.lexists(path):
        return []
    values = []
    # Bytes, because a letter may be cut in two.
    for number, line in enumerate(atomic.read_bytes(path, at_most=LARGEST_LINES).split(b"\n")[:-1], start=1):
        try:
            values.append(loads(line.decode()))
        except ValueError as error:  # UnicodeDecodeError is one
            raise DamagedFile(f"line {number} of {path} cannot be read: {error}") from error
    return values


def rewrite_lines(path: Path, shapes: Sequence[Mapping[str, object]]) -> None:
    """Replace the file by these lines."""
    atomic.write(path, b"".join(map(_line, shapes)).decode(), overwrite=True)


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return INFINITY if isinstance(value, float) and value == math.inf else value


def _too_deep() -> InvalidValue:
    return InvalidValue("file", allowed=f"nested at most {DEEPEST} levels deep", given="more levels")


def _refuse_constant(word: str) -> NoReturn:
    raise InvalidValue("JSON", allowed="without NaN and Infinity", given=word)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    read: dict[str, object] = {}
    for key, value in pairs:
        if key in read:
            raise InvalidValue("JSON", allowed="an object that names each key once", given=key)
        read[key] = value
    return read


def _line(shape: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(shape, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise InvalidValue("line", allowed="made of finite numbers, text, lists and mappings", given=shape) from error
