"""A lock that one process holds at a time, and that dies with it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lehr.errors import StoreError


def taken(path: Path, *, for_what: str) -> int:
    """The open, locked file; closing it gives the lock back. ``StoreError`` where another process has it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        held = "another process has it" if isinstance(error, BlockingIOError) else error.strerror
        raise StoreError(f"cannot use {for_what}: {held}") from error
    return descriptor
