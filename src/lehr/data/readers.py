"""Readers: npz files, idx files, CIFAR's binary files, and inputs without targets for a model to predict.

- ``read_npz``: two arrays, ``inputs`` and ``targets`` (or ``x`` and ``y``, or ``images`` and ``labels``). Arrays of
  Python objects are pickles and are refused. ``read_npz_column`` reads another array, such as the owners of records.
- ``read_idx``: the format of MNIST and Fashion-MNIST (LeCun, Cortes and Burges): four bytes for the type and the number
  of axes, four bytes for the length of each axis, then big-endian numbers.
- ``parse_cifar``: for each record the bytes of its labels, then 3 × 32 × 32 pixels. CIFAR-100 has a coarse and a fine
  label; the fine one, the last, is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from lehr.data import decoding
from lehr.data.file_content import LARGEST, LARGEST_FILE, named_errors, read_file
from lehr.data.image_folder import check_form
from lehr.data.records import InMemory
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic

NPZ_NAMES = (("inputs", "targets"), ("x", "y"), ("images", "labels"))
CIFAR_SHAPE = (3, 32, 32)
_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_npz(path: Path, *, at_most: int = LARGEST) -> InMemory:
    """Return the records in a file. ``at_most`` bounds the bytes of each array."""
    return InMemory(*_read_arrays(path, NPZ_NAMES, at_most=at_most))


def read_npz_column(path: Path, name: str) -> NDArray[np.generic]:
    """Return one array of numbers or text in a file: something about each record that is no input."""
    with named_errors(path), atomic.opened(path, at_most=LARGEST_FILE) as file, NpzFile(file) as arrays:
        if name not in arrays.files:
            raise StoreError(f"cannot read {path}: it holds {sorted(arrays.files)[:20]}, not {name}")
        if arrays.zip.getinfo(f"{name}.npy").file_size > LARGEST:  # type: ignore[union-attr]
            raise ValueError(f"{name} has more than {LARGEST:,} bytes")
        column: NDArray[np.generic] = arrays[name]
        return column


def read_idx(path: Path) -> NDArray[np.generic]:
    """Return the array in a file, which may be compressed."""
    return parse_idx(read_file(path), path=path)


def parse_idx(content: bytearray, *, path: Path) -> NDArray[np.generic]:
    """Return the array in the content of a file."""
    with named_errors(path):
        zeros, code, num_axes = struct.unpack_from(">HBB", content)
        if zeros:
            raise ValueError(f"it begins with {bytes(content[:4])!r}")
        kind = np.dtype(_IDX_TYPES[code])
        shape = struct.unpack_from(f">{num_axes}I", content, 4)
        _refuse_empty_records(shape)
        array = np.frombuffer(content, kind, offset=4 + 4 * num_axes).reshape(shape)
        return array.astype(kind.newbyteorder("="), copy=False)


def parse_cifar(content: bytearray, *, num_labels: int, path: Path) -> InMemory:
    """Return the records in the content of a file, each with ``num_labels`` bytes of labels before its pixels."""
    row = num_labels + math.prod(CIFAR_SHAPE)
    with named_errors(path):
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
        [inputs] = _read_arrays(path, [pair[:1] for pair in NPZ_NAMES])
    else:
        inputs = torch.from_numpy(read_idx(path))
    # Files of grey images have no channel axis.
    return inputs.unsqueeze(1) if shape[:1] == (1,) and tuple(inputs.shape[1:]) == shape[1:] else inputs


def _read_arrays(path: Path, names: Sequence[tuple[str, ...]], *, at_most: int = LARGEST) -> list[Tensor]:
    """Return the arrays of the first group of names that are all in the file."""
    with named_errors(path), atomic.opened(path, at_most=LARGEST_FILE) as file, NpzFile(file) as arrays:
        for group in names:
            if set(group) <= set(arrays.files):
                return [_read_array(arrays, name, at_most=at_most) for name in group]
        wanted = " or ".join(" and ".join(group) for group in names)
        raise StoreError(f"cannot read {path}: it holds {sorted(arrays.files)[:20]}, not {wanted}")


def _read_array(arrays: NpzFile, name: str, *, at_most: int) -> Tensor:
    """Return one array. Memory is taken for as many bytes as the archive has, whatever the array's header claims."""
    num_bytes = arrays.zip.getinfo(f"{name}.npy").file_size  # type: ignore[union-attr]
    if num_bytes > at_most:
        raise ValueError(f"{name} has {num_bytes:,} bytes, more than {at_most:,}")
    array = arrays[name]
    _refuse_empty_records(array.shape)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # which torch hardly supports
        array = array.astype(np.int64)
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))


def _refuse_empty_records(shape: Sequence[int]) -> None:
    """Refuse arrays without a record axis, and empty records: a small file could claim any number of them."""
    if not shape or 0 in shape[1:]:
        raise ValueError(f"an array of shape {tuple(shape)}")


def _read_image(path: Path, shape: tuple[int, ...], *, resize: bool) -> Tensor:
    if len(shape) != 3 or shape[0] not in decoding.MODES:
        raise InvalidValue("shape", allowed="that of images with 1 or 3 channels, where images are given", given=shape)
    size = shape[1], shape[2]
    check_form(size, shape[0])
    with named_errors(path), atomic.opened(path, at_most=decoding.MOST_BYTES) as file:
        pixels = decoding.decode(file, channels=shape[0], size=size if resize else None)
    if pixels.shape[1:] != size:
        allowed = f"of {size[0]} × {size[1]} pixels, or scaled to that (--resize)"
        raise InvalidValue(str(path), allowed=allowed, given=f"{pixels.shape[1]} × {pixels.shape[2]}")
    return torch.from_numpy(pixels).unsqueeze(0)
