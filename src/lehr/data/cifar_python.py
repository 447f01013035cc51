"""CIFAR-10 and CIFAR-100 in their python layout: pickled dicts, which are read without being run.

The images are an array of 3072 bytes a row, red, green and blue planes; the labels are a list beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lehr.data import pickled_arrays
from lehr.data.cifar import SHAPE
from lehr.data.in_memory import InMemory
from lehr.errors import BadRecord, InvalidValue, StoreError

_PIXELS = 3 * 32 * 32


def parsed(whole: bytearray, *, labels: str, path: Path) -> InMemory:
    """The records in the content of a file; ``labels`` is the name that it gives the labels that are used."""
    try:
        batch = pickled_arrays.loads(whole)
    except InvalidValue as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    images, targets = _field(batch, "data", path=path), _field(batch, labels, path=path)
    if not isinstance(images, np.ndarray) or images.ndim != 2 or images.shape[1] != _PIXELS:
        raise StoreError(f"cannot read {path}: its images are not an array of {_PIXELS} bytes a row")
    return InMemory(torch.from_numpy(images.copy()).view(-1, *SHAPE), _labels(targets, path=path))


def _field(batch: object, name: str, *, path: Path) -> Any:
    if isinstance(batch, dict):
        for key in (name, name.encode()):
            if key in batch:
                return batch[key]
    raise StoreError(f"cannot read {path}: it has no {name!r}")


def _labels(targets: object, *, path: Path) -> torch.Tensor:
    if not isinstance(targets, list):
        raise StoreError(f"cannot read {path}: its labels are not a list")
    for place, label in enumerate(targets):
        if type(label) is not int or not 0 <= label <= 255:
            raise BadRecord(f"{place} of {path}", reason=f"its label is {label!r}, not a number from 0 to 255")
    return torch.tensor(targets, dtype=torch.int64)
