"""Readers: npz files, idx files, CIFAR's binary files, and inputs without targets for a model to predict.

- ``read_npz``: two arrays, ``inputs`` and ``targets`` (or ``x`` and ``y``, or ``images`` and ``labels``). Arrays of
  Python objects are pickles and are refused.
- ``read_idx``: the format of MNIST and Fashion-MNIST (LeCun, Cortes and Burges): four bytes for the type and the number
  of axes, four bytes for the length of each axis, then big-endian numbers.
- ``parse_cifar``: for each record the bytes of its labels, then 3 × 32 × 32 pixels. CIFAR-100 has a coarse and a fine
  label; the fine one, the last, is used.

What a header claims is compared with the limits before anything of that size is read.
"""

from __future__ import annotations

import io
import math
import struct
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

from lehr.data import decoding, file_content
from lehr.data.image_folder import check_size
from lehr.data.records import InMemory
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic

NPZ_NAMES = (("inputs", "targets"), ("x", "y"), ("images", "labels"))
_HEADERS = {(1, 0): (npy.read_array_header_1_0, 2), (2, 0): (npy.read_array_header_2_0, 4)}  # and bytes of its length
_LONGEST_HEADER = 10_000
_LARGEST_READ = 4 * 1024**2
_SHOWN = 20


def read_npz(path: Path, *, at_most: int = file_content.LARGEST) -> InMemory:
    """Return the records in a file. ``at_most`` bounds the bytes of each array."""
    inputs, targets = _arrays(path, NPZ_NAMES, at_most=at_most)
    if inputs.ndim == 0 or targets.ndim == 0:
        raise StoreError(f"cannot read {path}: an array without a record axis")
    return InMemory(torch.from_numpy(inputs), torch.from_numpy(targets))


def read_npy(stream: IO[bytes], *, path: Path, at_most: int) -> NDArray[np.generic]:
    """Return the array of plain numbers in a stream of the .npy format; nothing may follow it."""
    shape, by_column, kind = _header(stream, path=path)
    num_bytes = file_content.array_bytes(shape, kind.itemsize, path=path, at_most=at_most)
    numbers = file_content.exactly(stream, num_bytes, path=path)
    array = np.frombuffer(numbers, dtype=kind).reshape(shape, order="F" if by_column else "C")
    return np.ascontiguousarray(array, dtype=_for_torch(kind)).reshape(shape)


def _arrays(path: Path, names: Sequence[tuple[str, ...]], *, at_most: int) -> list[NDArray[np.generic]]:
    """Return the arrays of the first group of names that are all in the file."""
    with (
        _npz_errors(path),
        atomic.opened(path, at_most=file_content.LARGEST_FILE) as file,
        zipfile.ZipFile(_SmallReads(file)) as archive,
    ):
        held = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        for group in names:
            if held.keys() >= set(group):
                return [_read_member(archive, held[name], path=path, at_most=at_most) for name in group]
    wanted = " or ".join(" and ".join(group) for group in names)
    raise StoreError(f"cannot read {path}: it holds {sorted(held)[:_SHOWN]}, not {wanted}")


class _SmallReads:
    """A file that refuses large reads, which ``zipfile`` would do for a long list of members."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self.seekable, self._read = file.seek, file.tell, file.seekable, file.read

    def read(self, size: int = -1) -> bytes:
        file_content = self._read(min(size, _LARGEST_READ + 1) if size >= 0 else _LARGEST_READ + 1)
        if len(file_content) > _LARGEST_READ:
            raise zipfile.BadZipFile(f"its list of members is longer than {_LARGEST_READ:,} bytes")
        return file_content


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, *, path: Path, at_most: int) -> NDArray[np.generic]:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unfold without a limit
        raise StoreError(f"cannot read {path}: {member.filename} is neither stored as it is nor deflated")
    with archive.open(member) as stream:
        return read_npy(stream, path=path, at_most=at_most)


def _header(stream: IO[bytes], *, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Return shape, order and dtype of an array; at most ``_LONGEST_HEADER`` bytes are read."""
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
    """Return the dtype in native byte order, signed where torch hardly supports the unsigned type."""
    if kind.kind == "u" and kind.itemsize > 1:
        return np.dtype(np.int64)
    return np.dtype(np.float64) if kind.itemsize > 8 else kind.newbyteorder("=")


@contextmanager
def _npz_errors(path: Path) -> Iterator[None]:
    try:
        with file_content.errors_with_path(path):
            yield
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise StoreError(f"cannot read {path}: it is truncated, damaged or not an .npz file ({error})") from error


_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_AXES = 8


def read_idx(path: Path, *, at_most: int = file_content.LARGEST) -> NDArray[np.generic]:
    """Return the array in a file, which may be compressed. ``at_most`` bounds its bytes."""
    with file_content.open_file(path) as stream:
        return _read_idx(stream, path=path, at_most=at_most)


def parse_idx(content: bytearray, *, path: Path) -> NDArray[np.generic]:
    """Return the array in the content of a file."""
    return _read_idx(io.BytesIO(content), path=path, at_most=file_content.LARGEST)


def _read_idx(stream: IO[bytes], *, path: Path, at_most: int) -> NDArray[np.generic]:
    head = bytes(stream.read(4))
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES or not 1 <= head[3] <= _MOST_AXES:
        raise StoreError(f"cannot read {path}: it is not an idx file, it begins with {head!r}")
    kind, num_axes = np.dtype(_IDX_TYPES[head[2]]), head[3]
    sizes = bytes(stream.read(4 * num_axes))
    if len(sizes) != 4 * num_axes:
        raise StoreError(f"cannot read {path}: it ends within its header")
    shape = struct.unpack(f">{num_axes}I", sizes)
    num_bytes = file_content.array_bytes(shape, kind.itemsize, path=path, at_most=at_most)
    array = np.frombuffer(file_content.exactly(stream, num_bytes, path=path), dtype=kind).reshape(shape)
    return array.astype(kind.newbyteorder("="), copy=False)


CIFAR_SHAPE = (3, 32, 32)


def parse_cifar(content: bytearray, *, num_labels: int, path: Path) -> InMemory:
    """Return the records in the content of a file, each with ``num_labels`` bytes of labels before its pixels."""
    row = num_labels + math.prod(CIFAR_SHAPE)
    if len(content) % row:
        raise StoreError(
            f"cannot read {path}: {len(content):,} bytes are not a multiple of {row}, the size of a record"
        )
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, row)
    images = torch.from_numpy(rows[:, num_labels:].copy()).view(-1, *CIFAR_SHAPE)
    return InMemory(images, torch.from_numpy(rows[:, num_labels - 1].astype(np.int64)))


def read_inputs(path: Path, *, shape: tuple[int, ...], resize: bool = False) -> Tensor:
    """Return the inputs in an npz, idx or image file, with a leading record axis; an image is one record.

    ``shape`` is that of one record. With ``resize``, images of another size are scaled to it.
    """
    if path.suffix.lower() in decoding.SUFFIXES:
        return _read_image(path, shape, resize=resize)
    if path.suffix.lower() == ".npz":
        [inputs] = _arrays(path, [pair[:1] for pair in NPZ_NAMES], at_most=file_content.LARGEST)
    else:
        inputs = read_idx(path)
    array = torch.from_numpy(inputs)
    # Files of grey images have no channel axis.
    return array.unsqueeze(1) if shape[:1] == (1,) and tuple(array.shape[1:]) == shape[1:] else array


def _read_image(path: Path, shape: tuple[int, ...], *, resize: bool) -> Tensor:
    if len(shape) != 3 or shape[0] not in decoding.MODES:
        raise InvalidValue("shape", allowed="that of images with 1 or 3 channels, where images are given", given=shape)
    size = check_size(shape[1], shape[2])
    decoding.require_pillow()
    try:
        with atomic.opened(path, at_most=decoding.MOST_BYTES) as file:
            pixels = decoding.decode(file, channels=shape[0], size=size if resize else None)
    except StoreError:
        raise
    except Exception as error:  # a decoder of a hostile file can fail in any way
        raise StoreError(f"cannot read {path} as an image: {error}") from error
    if pixels.shape[1:] != size:
        allowed = f"of {size[0]} × {size[1]} pixels, or scaled to that (--resize)"
        raise InvalidValue(str(path), allowed=allowed, given=f"{pixels.shape[1]} × {pixels.shape[2]}")
    return torch.from_numpy(pixels).unsqueeze(0)
