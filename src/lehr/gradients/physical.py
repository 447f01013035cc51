"""A drawn batch as physical batches of one size, so that nothing is compiled twice; padding is masked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lehr.gradients.batches import each


def physical_batches(batch: tuple[Any, Any, Tensor], *, size: int | None) -> Iterator[tuple[Any, Any, Tensor]]:
    """Inputs, targets and mask in parts of ``size`` records, the last one filled up with zeros that do not count."""
    num_records = batch[2].shape[0]
    if size is None or size == num_records:
        yield batch
        return
    for first in range(0, num_records, size):
        inputs, targets, mask = each(lambda leaf, first=first: _filled(leaf[first : first + size], size), batch)  # type: ignore[misc]
        yield inputs, targets, mask


def _filled(values: Tensor, size: int) -> Tensor:
    missing = size - values.shape[0]
    return torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values
