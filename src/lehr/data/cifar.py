"""CIFAR-10 and CIFAR-100 in their binary layout: for each record the bytes of its labels, then 3 × 32 × 32 pixels.

CIFAR-100 has two labels, of the twenty coarse and of the hundred fine classes, in this order; the last is used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lehr.data.in_memory import InMemory
from lehr.errors import StoreError

SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


def parsed(whole: bytearray, *, num_labels: int, path: Path) -> InMemory:
    """The records in the content of a file, each with ``num_labels`` bytes of labels before its pixels."""
    row = num_labels + _PIXELS
    if len(whole) % row:
        raise StoreError(f"cannot read {path}: its {len(whole):,} bytes are no whole number of records of {row} bytes")
    rows = np.frombuffer(whole, dtype=np.uint8).reshape(-1, row)
    images = torch.from_numpy(rows[:, num_labels:].copy()).view(-1, *SHAPE)
    return InMemory(images, torch.from_numpy(rows[:, num_labels - 1].astype(np.int64)))
