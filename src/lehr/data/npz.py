"""Records from an .npz file: two arrays, ``inputs`` and ``targets`` (or ``x`` and ``y``, or ``images`` and ``labels``).

Arrays of Python objects are pickles and are refused. What the header of an array promises is compared with the size
of its member and with what is allowed before any of it is read.
"""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from lehr.data import content
from lehr.data.in_memory import InMemory
from lehr.errors import StoreError

NAMES = (("inputs", "targets"), ("x", "y"), ("images", "labels"))
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read(path: Path, *, at_most: int = content.LARGEST) -> InMemory:
    """The records in a file. ``at_most`` bounds the bytes of each array."""
    with _failing_by_name(path), zipfile.ZipFile(path) as archive:
        inputs, targets = (
            torch.from_numpy(_array(archive, name, path=path, at_most=at_most)) for name in _pair(archive, path)
        )
    if inputs.ndim == 0 or targets.ndim == 0:
        raise StoreError(f"cannot read {path}: an array without a record axis")
    return InMemory(inputs, targets)


def _pair(archive: zipfile.ZipFile, path: Path) -> tuple[str, str]:
    held = {name.removesuffix(".npy") for name in archive.namelist()}
    for pair in NAMES:
        if held.issuperset(pair):
            return pair
    wanted = " or ".join(" and ".join(pair) for pair in NAMES)
    raise StoreError(f"cannot read {path}: it holds {sorted(held)}, not {wanted}")


def _array(archive: zipfile.ZipFile, name: str, *, path: Path, at_most: int) -> NDArray[np.generic]:
    with archive.open(f"{name}.npy") as member:
        shape, by_column, kind = _header(member, name, path=path)
        num_bytes = math.prod(shape) * kind.itemsize
        if num_bytes > at_most:
            raise StoreError(f"cannot read {path}: {name} promises {num_bytes:,} bytes, more than {at_most:,}")
        numbers = content.exactly(member, num_bytes, path=path)
    array = np.frombuffer(numbers, dtype=kind).reshape(shape, order="F" if by_column else "C")
    return np.ascontiguousarray(array, dtype=_for_torch(kind)).reshape(shape)


def _header(member: IO[bytes], name: str, *, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = npy.read_magic(member)
    if version not in _HEADERS:
        raise StoreError(f"cannot read {path}: {name} is of the version {version} of the format")
    shape, by_column, kind = _HEADERS[version](member)
    if kind.kind not in "buif" or any(length < 0 for length in shape):
        raise StoreError(f"cannot read {path}: {name} is an array of {kind} of shape {shape}, not of plain numbers")
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
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, lzma.LZMAError, zlib.error) as error:
        raise StoreError(f"cannot read {path}: it is truncated, damaged or not an .npz file ({error})") from error
