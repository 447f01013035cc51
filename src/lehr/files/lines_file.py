"""JSON lines that are only ever added to. A line that a crash cut off is not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from lehr.errors import DamagedFile, StoreError
from lehr.files import strict_json, whole_file


def append(path: Path, shape: Mapping[str, object], *, mode: int = 0o644) -> None:
    """Add a line; when this returns, it is on the disk. ``mode`` is that of a new file."""
    line = json.dumps(shape, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
        with open(descriptor, "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path) -> list[object]:
    """Every whole line; none where there is no file yet."""
    return [_value(path, number, line) for number, line in enumerate(_whole_lines(path), start=1)]


def rewrite(path: Path, shapes: list[Mapping[str, object]]) -> None:
    """Keep these lines and no others."""
    lines = (json.dumps(shape, ensure_ascii=False, allow_nan=False) + "\n" for shape in shapes)
    whole_file.write(path, "".join(lines), overwrite=True)


def _whole_lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    *whole, _cut_off = whole_file.read(path).split("\n")
    return whole


def _value(path: Path, number: int, line: str) -> object:
    try:
        return strict_json.loads(line)
    except ValueError as error:
        raise DamagedFile(f"line {number} of {path} cannot be read: {error}") from error
