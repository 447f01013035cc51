"""Arrays in the idx format of MNIST and FashionMNIST (LeCun, Cortes and Burges, "The MNIST database").

Four bytes say the type of the numbers and how many axes there are, four bytes for each axis say how long it is, and
the numbers follow, big-endian. What the header promises is compared with what is allowed before any of it is read.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lehr.data import content
from lehr.errors import StoreError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_AXES = 8


def read(path: Path, *, at_most: int = content.LARGEST) -> NDArray[np.generic]:
    """The array in a file, which may be compressed. ``at_most`` bounds its bytes."""
    with content.opened(path) as stream:
        head = bytes(stream.read(4))
        num_axes = _checked_head(head, path=path)[1]
        sizes = bytes(stream.read(4 * num_axes))
        kind, shape = _promised(head + sizes, path=path)
        num_bytes = content.array_bytes(shape, kind.itemsize, path=path, at_most=at_most)
        return _array(content.exactly(stream, num_bytes, path=path), kind, shape)


def parsed(whole: bytearray, *, path: Path) -> NDArray[np.generic]:
    """The array in the content of a file that is in memory already."""
    num_axes = _checked_head(bytes(whole[:4]), path=path)[1]
    start = 4 + 4 * num_axes
    kind, shape = _promised(bytes(whole[:start]), path=path)
    if len(whole) - start != content.array_bytes(shape, kind.itemsize, path=path, at_most=content.LARGEST):
        raise StoreError(f"cannot read {path}: it holds {len(whole) - start:,} bytes, not the promised shape {shape}")
    return _array(whole[start:], kind, shape)


def _checked_head(head: bytes, *, path: Path) -> tuple[int, int]:
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES or not 1 <= head[3] <= _MOST_AXES:
        raise StoreError(f"cannot read {path}: it is not an idx file, which begins with other bytes than {head!r}")
    return head[2], head[3]


def _promised(header: bytes, *, path: Path) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    kind, num_axes = _checked_head(header[:4], path=path)
    if len(header) != 4 + 4 * num_axes:
        raise StoreError(f"cannot read {path}: it ends within its header")
    return np.dtype(_TYPES[kind]), struct.unpack(f">{num_axes}I", header[4:])


def _array(numbers: bytearray, kind: np.dtype[np.generic], shape: tuple[int, ...]) -> NDArray[np.generic]:
    array = np.frombuffer(numbers, dtype=kind).reshape(shape)
    return array.astype(kind.newbyteorder("="), copy=False)
