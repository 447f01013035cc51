"""Records from an .npz file: two arrays, ``inputs`` and ``targets`` (or ``x`` and ``y``, or ``images`` and ``labels``).

Arrays of Python objects are pickles and are refused. What the header of an array promises is compared with the size
of its member and with what is allowed before any of it is read.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from lehr.data import content
from lehr.data.in_memory import InMemory
from lehr.errors import StoreError
from lehr.files import whole_file

NAMES = (("inputs", "targets"), ("x", "y"), ("images", "labels"))
_HEADERS = {(1, 0): (npy.read_array_header_1_0, 2), (2, 0): (npy.read_array_header_2_0, 4)}  # and bytes of its length
_LONGEST_HEADER = 10_000
_LARGEST_READ = 4 * 1024**2
_SHOWN = 20


def read(path: Path, *, at_most: int = content.LARGEST) -> InMemory:
    """The records in a file. ``at_most`` bounds the bytes of each array."""
    inputs, targets = _arrays(path, NAMES, at_most=at_most)
    if inputs.ndim == 0 or targets.ndim == 0:
        raise StoreError(f"cannot read {path}: an array without a record axis")
    return InMemory(torch.from_numpy(inputs), torch.from_numpy(targets))


def read_inputs(path: Path, *, at_most: int = content.LARGEST) -> Tensor:
    """The inputs in a file, whether or not there are targets beside them."""
    [inputs] = _arrays(path, [pair[:1] for pair in NAMES], at_most=at_most)
    return torch.from_numpy(inputs)


def read_array(stream: IO[bytes], *, path: Path, at_most: int) -> NDArray[np.generic]:
    """The array of plain numbers in a stream of the .npy format, with which it must end."""
    shape, by_column, kind = _header(stream, path=path)
    num_bytes = content.array_bytes(shape, kind.itemsize, path=path, at_most=at_most)
    numbers = content.exactly(stream, num_bytes, path=path)
    array = np.frombuffer(numbers, dtype=kind).reshape(shape, order="F" if by_column else "C")
    return np.ascontiguousarray(array, dtype=_for_torch(kind)).reshape(shape)


def _arrays(path: Path, names: Sequence[tuple[str, ...]], *, at_most: int) -> list[NDArray[np.generic]]:
    """The arrays of the first group of names that the file has all of."""
    with (
        _failing_by_name(path),
        whole_file.opened(path, at_most=content.LARGEST_FILE) as file,
        zipfile.ZipFile(_SmallReads(file)) as archive,
    ):
        held = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        for group in names:
            if held.keys() >= set(group):
                return [_member(archive, held[name], path=path, at_most=at_most) for name in group]
    wanted = " or ".join(" and ".join(group) for group in names)
    raise StoreError(f"cannot read {path}: it holds {sorted(held)[:_SHOWN]}, not {wanted}")


class _SmallReads:
    """A file of which ``zipfile`` cannot take a large part at once, as it would for a long list of members."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self.seekable, self._read = file.seek, file.tell, file.seekable, file.read

    def read(self, size: int = -1) -> bytes:
        content = self._read(min(size, _LARGEST_READ + 1) if size >= 0 else _LARGEST_READ + 1)
        if len(content) > _LARGEST_READ:
            raise zipfile.BadZipFile(f"its list of members is longer than {_LARGEST_READ:,} bytes")
        return content


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, path: Path, at_most: int) -> NDArray[np.generic]:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unfold without a limit
        raise StoreError(f"cannot read {path}: {member.filename} is neither stored as it is nor deflated")
    with archive.open(member) as stream:
        return read_array(stream, path=path, at_most=at_most)


def _header(stream: IO[bytes], *, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """The shape, the order and the type of an array; nothing longer than ``_LONGEST_HEADER`` is read for it."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise StoreError(f"cannot read {path}: an array of the version {version} of the format")
    parse, width = _HEADERS[version]
    length = stream.read(width)
    if len(length) < width or int.from_bytes(length, "little") > _LONGEST_HEADER:
        raise StoreError(f"cannot read {path}: the header of an array is cut off, or above {_LONGEST_HEADER:,} bytes")
    try:
        shape, by_column, kind = parse(io.BytesIO(length + stream.read(int.from_bytes(length, "little"))))
    except (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:  # of a short text
        raise StoreError(f"cannot read {path}: the header of an array is damaged ({error})") from error
    if kind.kind not in "buif" or any(type(length) is not int or length < 0 for length in shape):
        raise StoreError(f"cannot read {path}: an array of {kind} of shape {shape}, not of plain numbers")
    return shape, by_column, kind


def _for_torch(kind: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The machine's own order of bytes, and signed where torch has hardly any use for the unsigned type."""
    if kind.kind == "u" and kind.itemsize > 1:
        return np.dtype(np.int64)
    return np.dtype(np.float64) if kind.itemsize > 8 else kind.newbyteorder("=")


@contextmanager
def _failing_by_name(path: Path) -> Iterator[None]:
    try:
        with content.failing_by_name(path):
            yield
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise StoreError(f"cannot read {path}: it is truncated, damaged or not an .npz file ({error})") from error
