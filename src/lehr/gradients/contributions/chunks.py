"""Norms of gradients that have to be formed: a few records at a time, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from lehr.gradients.products import sum_of_squares
from lehr.interfaces import Contribution

FORMED_BYTES = 64 * 2**20
# A compiled step has every chunk written out, so there may not be many of them; then each may be larger.
MOST_COMPILED_CHUNKS = 16


@runtime_checkable
class Divisible(Contribution, Protocol):
    """A contribution that can be asked for some of its records only."""

    @property
    def records(self) -> int:
        """How many there are."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's part."""

    def taken(self, first: int, last: int) -> Contribution:
        """The records from the first to before the last."""


def squared_norms_by_forming(
    uses: Sequence[Contribution], formed: Callable[[Sequence[Contribution]], Tensor]
) -> Tensor:
    """The squared norms of ``formed(uses)``, records first. What cannot be divided is formed at once."""
    divisible = [use for use in uses if isinstance(use, Divisible)]
    if len(divisible) < len(uses):
        return sum_of_squares(formed(uses))
    records = divisible[0].records
    together = records_together(records, numbers=prod(divisible[0].shape))
    firsts = range(0, max(records, 1), together)
    chunks = ([use.taken(first, min(first + together, records)) for use in divisible] for first in firsts)
    return torch.cat([sum_of_squares(formed(chunk)) for chunk in chunks])


def records_together(records: int, *, numbers: int) -> int:
    """How many records are formed at once when each takes so many numbers; public shape alone decides."""
    fitting = FORMED_BYTES // max(1, 4 * numbers)
    least = ceil(records / MOST_COMPILED_CHUNKS) if torch.compiler.is_compiling() else 1
    return max(fitting, least, 1)
