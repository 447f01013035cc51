"""A JSON file written whole or not at all, and read through a function that refuses what it does not know."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from lehr.errors import InvalidValue, StoreError
from lehr.files import strict_json, whole_file

Value = TypeVar("Value")


def write(path: str | os.PathLike[str], shape: object, *, overwrite: bool = False) -> None:
    """Put the JSON of ``shape`` at ``path``; over another file only with ``overwrite``."""
    whole_file.write(path, text(shape), overwrite=overwrite)


def text(shape: object) -> str:
    """What such a file holds."""
    return strict_json.dumps(shape) + "\n"


def read(path: str | os.PathLike[str], from_json: Callable[[object], Value]) -> Value:
    """What ``from_json`` makes of the file; ``StoreError``, with the file's name, where it makes nothing of it."""
    try:
        return from_json(strict_json.loads(whole_file.read(path)))
    except InvalidValue as error:
        raise StoreError(f"cannot use {path}: {error}") from error
