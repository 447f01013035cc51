"""JSON lines that are only ever added to, ``LARGEST`` bytes at most. A line that a crash cut off is not there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import strict_json, whole_file

LARGEST = 256 * 1024**2  # bytes of all lines together


def append(path: Path, shape: Mapping[str, object], *, mode: int = 0o644) -> None:
    """Add a line; when this returns, it is on the disk. ``mode`` is that of a new file."""
    line = _line(shape)
    try:
        is_new = not path.exists()
        with open(os.open(path, os.O_RDWR | os.O_CREAT, mode), "r+b") as file:
            _drop_cut_off_line(file)
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            whole_file.flush_folder(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def read(path: Path) -> list[object]:
    """Every whole line; none where there is no file yet."""
    return [_value(path, number, line) for number, line in enumerate(_whole_lines(path), start=1)]


def rewrite(path: Path, shapes: Sequence[Mapping[str, object]]) -> None:
    """Keep these lines and no others."""
    whole_file.write(path, b"".join(map(_line, shapes)).decode(), overwrite=True)


def _line(shape: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(shape, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise InvalidValue("line", allowed="made of finite numbers, text, lists and mappings", given=shape) from error


def _drop_cut_off_line(file: BinaryIO) -> None:
    """Go to where the next line begins; the new one would otherwise go on with one that a crash cut off."""
    end = file.seek(0, os.SEEK_END)
    if end > LARGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    if end:
        file.seek(end - 1)
        if file.read(1) != b"\n":
            file.seek(0)
            end = file.read().rfind(b"\n") + 1
    file.truncate(file.seek(end))


def _whole_lines(path: Path) -> list[bytes]:
    """The lines, as bytes: a crash may have cut a letter in two."""
    if not os.path.lexists(path):
        return []
    return whole_file.read_bytes(path, at_most=LARGEST).split(b"\n")[:-1]


def _value(path: Path, number: int, line: bytes) -> object:
    try:
        return strict_json.loads(line.decode())
    except ValueError as error:  # UnicodeDecodeError is one
        raise DamagedFile(f"line {number} of {path} cannot be read: {error}") from error
