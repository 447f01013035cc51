"""A text file that appears whole or not at all, and a reading that names the file when it fails.

The text goes to a new file in the same folder, is flushed to the disk, and then takes the name in one step: a crash
or a full disk leaves what stood there before.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from lehr.errors import StoreError


def write(path: str | os.PathLike[str], text: str) -> None:
    """Put ``text`` at ``path``, replacing what is there. Raises ``StoreError`` and leaves the old file if it cannot."""
    target = Path(path).resolve()  # a link stays a link: the file that it names is replaced
    if target.exists() and not target.is_file():
        raise StoreError(f"cannot write {path}: it is there already and is not a file")
    try:
        _replace(target, text)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def read(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file. Raises ``StoreError`` where there is none to read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StoreError(f"cannot read {path}: it is not UTF-8 text") from error


def _replace(target: Path, text: str) -> None:
    temporary = target.parent / f".{secrets.token_hex(8)}.part"
    try:
        with open(temporary, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
