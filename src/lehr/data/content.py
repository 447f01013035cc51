"""What a file holds, whether it is stored as it is or compressed with gzip, and never more of it than was expected.

A file can be truncated, be something else, or be small and unfold to more than the memory: reading stops one byte
after the number of bytes that its reader expects, and every failure is a ``StoreError`` that names the file.
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
from lehr.files import whole_file

LARGEST = 2 * 1024**3  # bytes of one array, or of all images of a folder
LARGEST_FILE = 3 * LARGEST  # bytes of a file as it is stored: an .npz holds two arrays
_CHUNK = 1024**2
_GZIP = b"\x1f\x8b"


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file as a stream of its uncompressed bytes. Whether it is compressed is seen from it, not from its name."""
    with failing_by_name(path), whole_file.opened(path, at_most=LARGEST_FILE) as file:
        compressed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not compressed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked  # type: ignore[misc]


@contextmanager
def failing_by_name(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file can cause into a ``StoreError`` that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise StoreError(f"cannot read {path}: it is truncated or damaged ({error})") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def chunks(stream: IO[bytes], *, at_most: int) -> Iterator[bytes]:
    """The next bytes of a stream, up to so many, a piece at a time."""
    left = at_most
    while left > 0 and (chunk := stream.read(min(left, _CHUNK))):
        left -= len(chunk)
        yield chunk


def array_bytes(shape: Sequence[int], itemsize: int, *, path: Path, at_most: int) -> int:
    """How many bytes an array of this shape has. One that is too large is refused, and one of empty records too.

    Records without a number in them take no byte, so that a few bytes could promise any number of them.
    """
    if 0 in shape[1:]:
        raise StoreError(f"cannot read {path}: it promises records with nothing in them, of shape {tuple(shape)}")
    promised = math.prod(length or 1 for length in shape) * itemsize
    if promised > at_most:
        raise StoreError(f"cannot read {path}: its header promises {promised:,} bytes, more than {at_most:,}")
    return math.prod(shape) * itemsize


def exactly(stream: IO[bytes], num_bytes: int, *, path: Path) -> bytearray:
    """So many bytes, with which the stream must end. Memory is taken as they come, not as they are promised."""
    content = bytearray()
    for chunk in chunks(stream, at_most=num_bytes + 1):
        content += chunk
    if len(content) > num_bytes:
        raise StoreError(f"cannot read {path}: it goes on after the {num_bytes:,} bytes that it should hold")
    if len(content) < num_bytes:
        raise StoreError(f"cannot read {path}: it ends after {len(content):,} bytes of {num_bytes:,}")
    return content


def read(path: Path, *, num_bytes: int) -> bytearray:
    """The content of a file that must hold so many bytes."""
    with opened(path) as stream:
        return exactly(stream, num_bytes, path=path)


def read_up_to(path: Path, *, at_most: int = LARGEST) -> bytearray:
    """The whole content of a file that may hold at most so many bytes."""
    content = bytearray()
    with opened(path) as stream:
        for chunk in chunks(stream, at_most=at_most + 1):
            content += chunk
    if len(content) > at_most:
        raise StoreError(f"cannot read {path}: it holds more than the {at_most:,} bytes that are allowed")
    return content
