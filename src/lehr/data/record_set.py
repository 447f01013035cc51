"""What a run asks of all its records at once, whether they are held or stay on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import torch
from torch import Tensor

from lehr.interfaces import Records

Bytes = bytes | memoryview


class RecordSet(Records, Protocol):
    """Records with one tensor for the input and one for the target, as a run is given them."""

    @property
    def kind(self) -> object:
        """What contents are of: records of two kinds are never compared."""

    def at(self, places: Tensor) -> Self:
        """Only the records at these places."""

    def to(self, device: torch.device | str) -> Self:
        """The same records, on a device as far as they are held."""

    def targets_to(self, device: torch.device | str) -> Self:
        """The same records, with nothing but their targets on a device."""

    def contents(self) -> Iterator[Bytes]:
        """Bytes that follow from the input of each record and tell it from others, in order."""

    def identity(self, role: str) -> Iterator[Bytes]:
        """All that tells these records, in this role, from others: hashed with a key, their fingerprint."""
