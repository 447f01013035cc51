"""Bounded reading of files that may be compressed with gzip, truncated, or something else than expected."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lehr.errors import LehrError, StoreError
from lehr.files import atomic

LARGEST = 2 * 1024**3  # bytes of one array, or of all images of a folder
LARGEST_FILE = 3 * LARGEST  # bytes of a file as it is stored: an .npz holds two arrays
_CHUNK = 1024**2
_GZIP = b"\x1f\x8b"


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn whatever reading a damaged file can raise into a ``StoreError`` that names it."""
    try:
        yield
    except LehrError:
        raise
    except Exception as error:  # decoders of hostile files can fail in any way
        raise StoreError(f"cannot read {path}: it is truncated, damaged or of another format ({error})") from error


def read_file(path: Path, *, at_most: int = LARGEST) -> bytearray:
    """Return the uncompressed content of a file of at most so many bytes. Memory grows with what arrives.

    Compression by gzip is recognised by content, not by name.
    """
    content = bytearray()
    with named_errors(path), atomic.opened(path, at_most=LARGEST_FILE) as file:
        is_compressed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        stream = gzip.GzipFile(fileobj=file) if is_compressed else file
        while len(content) <= at_most and (chunk := stream.read(_CHUNK)):
            content += chunk
    if len(content) > at_most:
        raise StoreError(f"cannot read {path}: it holds more than {at_most:,} bytes")
    return content
