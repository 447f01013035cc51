"""Splits into private, public and test records by a keyed hash of each record's content.

One record more or less moves no other, and equal records go to the same part. A random permutation would not do: one
record more would change the part of others. The proof is in ``split.proof.md``.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lehr import validate
from lehr.data.file_content import LARGEST, named_errors
from lehr.data.records import RecordSet
from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import atomic
from lehr.privacy.rng import RunKey

PRIVATE, PUBLIC, TEST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Split:
    """The part of each record, in the order of the records; as private as the records."""

    parts: Tensor

    def __repr__(self) -> str:
        return "Split(...)"

    @property
    def private(self) -> Tensor:
        """Indices of the records for training."""
        return self._indices(PRIVATE)

    @property
    def public(self) -> Tensor:
        """Indices of the records that acceptance may score on, which the user declares public."""
        return self._indices(PUBLIC)

    @property
    def test(self) -> Tensor:
        """Indices of the records for the final evaluation."""
        return self._indices(TEST)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the parts to a new file of mode 0600."""
        whole = io.BytesIO()
        np.save(whole, self.parts.numpy(), allow_pickle=False)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(whole.getvalue())
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the split in a file that ``save`` wrote."""
        with named_errors(Path(path)):
            parts = np.load(io.BytesIO(atomic.read_bytes(path, at_most=LARGEST)), allow_pickle=False)
            if parts.dtype != np.uint8 or parts.ndim != 1 or not np.isin(parts, (PRIVATE, PUBLIC, TEST)).all():
                raise DamagedFile(f"cannot read {path}: it is not a split")
            return cls(torch.from_numpy(parts))

    def _indices(self, part: int) -> Tensor:
        return torch.nonzero(self.parts == part).flatten()


def split(records: RecordSet, *, key: RunKey, public_fraction: float = 0.0, test_fraction: float = 0.0) -> Split:
    """Assign each record to a part by a keyed hash of its content; fractions are expected values."""
    public = validate.non_negative(public_fraction=public_fraction)
    held_out = public + validate.non_negative(test_fraction=test_fraction)
    if not held_out < 1:
        given = (public_fraction, test_fraction)
        raise InvalidValue("public_fraction and test_fraction", allowed="below 1 together", given=given)
    chances = key.uniforms_of(records.contents(), "split")
    parts = torch.full((len(records),), PRIVATE, dtype=torch.uint8)
    parts[chances < held_out] = TEST
    parts[chances < public] = PUBLIC
    return Split(parts)
