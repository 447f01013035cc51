"""Bounded reading of files that may be compressed with gzip, truncated, or something else than expected.

Reading stops one byte after the expected number, and every failure is a ``StoreError`` that names the file.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lehr.errors import StoreError
from lehr.files import atomic

LARGEST = 2 * 1024**3  # bytes of one array, or of all images of a folder
LARGEST_FILE = 3 * LARGEST  # bytes of a file as it is stored: an .npz holds two arrays
_CHUNK = 1024**2
_GZIP = b"\x1f\x8b"


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open the file as a stream of its uncompressed bytes; gzip is recognised by content, not by name."""
    with errors_with_path(path), atomic.opened(path, at_most=LARGEST_FILE) as file:
        compressed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not compressed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked  # type: ignore[misc]


@contextmanager
def errors_with_path(path: Path) -> Iterator[None]:
    """Turn whatever a damaged file can raise into a ``StoreError`` that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StoreError(f"cannot read {path}: it is truncated or damaged ({error})") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def chunks(stream: IO[bytes], *, at_most: int) -> Iterator[bytes]:
    """Yield the next ``at_most`` bytes of a stream in pieces."""
    left = at_most
    while left > 0 and (chunk := stream.read(min(left, _CHUNK))):
        left -= len(chunk)
        yield chunk


def array_bytes(shape: Sequence[int], itemsize: int, *, path: Path, at_most: int) -> int:
    """Return the size of an array of this shape; refuse one that is too large or has empty records.

    Empty records take no bytes, so a small file could claim any number of them.
    """
    if 0 in shape[1:]:
        raise StoreError(f"cannot read {path}: its records are empty, of shape {tuple(shape)}")
    claimed = math.prod(length or 1 for length in shape) * itemsize
    if claimed > at_most:
        raise StoreError(f"cannot read {path}: its header claims {claimed:,} bytes, more than {at_most:,}")
    return math.prod(shape) * itemsize


def exactly(stream: IO[bytes], num_bytes: int, *, path: Path) -> bytearray:
    """Return the rest of a stream, which must be ``num_bytes`` long. Memory grows with what arrives."""
    content = bytearray()
    for chunk in chunks(stream, at_most=num_bytes + 1):
        content += chunk
    if len(content) != num_bytes:
        held = "more" if len(content) > num_bytes else f"only {len(content):,}"
        raise StoreError(f"cannot read {path}: it should hold {num_bytes:,} bytes and holds {held}")
    return content


def read_exactly(path: Path, *, num_bytes: int) -> bytearray:
    """Return the content of a file that must hold ``num_bytes``."""
    with open_file(path) as stream:
        return exactly(stream, num_bytes, path=path)
