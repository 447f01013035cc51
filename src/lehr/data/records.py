"""Records: in memory or on disk, checked before training, and compared by content.

- ``RecordSet``: what a run needs of its records; ``InMemory`` holds them as tensors, ``StreamedFolder`` leaves them on
  disk (``image_folder``)
- ``read_dataset``: records of any map-style ``torch.utils.data.Dataset``
- ``check_trainable``, ``check_count``: whether they can be trained on
- ``overlap``, ``is_mostly_in``, ``sketch``: whether two sets share records
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from lehr import validate
from lehr.errors import BadRecord, InvalidValue
from lehr.interfaces import Records

MAX_COUNT_RATIO = 3  # enough for a rounded number, and for the halves of a cross-validation
_CHUNK = 4096
_SKETCH_SIZE = 256  # also the records compared of a folder on disk: reading all would take longer than many a run

Bytes = bytes | memoryview


class RecordSet(Records, Protocol):
    """Records with one tensor for the input and one for the target."""

    @property
    def kind(self) -> object:
        """What ``contents`` are bytes of. Records of two kinds are never compared."""

    def at(self, indices: Tensor) -> Self:
        """Return the records at these indices."""

    def to(self, device: torch.device | str, *, targets_only: bool = False) -> Self:
        """Return the same records, on a device as far as they are in memory."""

    def contents(self) -> Iterator[Bytes]:
        """Yield bytes that identify the input of each record, in order."""

    def identity(self, role: str) -> Iterator[Bytes]:
        """Yield all that distinguishes these records, in this role, from others: hashed with a key, a fingerprint."""

    def sample(self, count: int) -> Self:
        """Return ``count`` records spread over the set where reading all is slow, or all."""

    def possible_duplicates(self, other: Any) -> Self:
        """Return the records that may also be in ``other``, as far as that is known without reading them."""


@dataclass(frozen=True, eq=False, repr=False)
class InMemory:
    """The inputs and the targets of all records; both tensors begin with the record axis.

    >>> import torch
    >>> records = InMemory(torch.zeros(4, 1, 2, 2), torch.arange(4))
    >>> records.batch(torch.tensor([2, 0]))[1].tolist()
    [2, 0]
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for name, value in (("inputs", self.inputs), ("targets", self.targets)):
            given: object = value
            if not isinstance(given, Tensor) or given.ndim == 0:
                raise InvalidValue(name, allowed="a tensor that begins with the record axis", given=type(given))
        num_inputs, num_targets = len(self.inputs), len(self.targets)
        if num_inputs != num_targets:
            reason = f"there are {num_inputs} inputs and {num_targets} targets"
            raise BadRecord(min(num_inputs, num_targets), reason=reason)

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        # Neither the values nor their number: both are private where the records are.
        return f"InMemory(inputs {self.inputs.dtype} {tuple(self.inputs.shape[1:])}, on {self.inputs.device})"

    def batch(self, indices_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the records at these indices."""
        indices = indices_B.to(self.inputs.device)
        return self.inputs.index_select(0, indices), self.targets.index_select(0, indices.to(self.targets.device))

    def at(self, indices: Tensor) -> Self:
        """Return the records at these indices."""
        return type(self)(*self.batch(indices))

    def to(self, device: torch.device | str, *, targets_only: bool = False) -> Self:
        """Return the same records on a device."""
        return type(self)(self.inputs if targets_only else self.inputs.to(device), self.targets.to(device))

    @property
    def kind(self) -> object:
        """Dtype and shape: records are compared as they are stored."""
        return self.inputs.dtype, tuple(self.inputs.shape[1:])

    def contents(self) -> Iterator[memoryview]:
        """Yield the bytes of every record's input, in order."""
        return input_bytes(self.inputs)

    def identity(self, role: str) -> Iterator[Bytes]:
        """Yield everything: dtypes, shapes and all bytes."""
        for tensor in (self.inputs, self.targets):
            yield f"{role} {tensor.dtype} {tuple(tensor.shape)}".encode()
            yield tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data

    def sample(self, count: int) -> Self:
        """Return all: they are in memory."""
        return self

    def possible_duplicates(self, other: Any) -> Self:
        """Return all."""
        return self


def input_bytes(all_inputs: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of every record's input, in order. Labels do not enter."""
    for first in range(0, len(all_inputs), _CHUNK):
        inputs = all_inputs[first : first + _CHUNK].detach().cpu()
        if inputs.is_floating_point():
            inputs = inputs + 0.0  # -0.0 becomes 0.0: equal numbers have equal bytes
        whole: memoryview = inputs.contiguous().reshape(-1).view(torch.uint8).numpy().data
        length = len(whole) // len(inputs)
        yield from (whole[index * length : (index + 1) * length] for index in range(len(inputs)))


def check_trainable(records: Records, *, num_classes: int | None) -> None:
    """Raise ``BadRecord`` for the first record that cannot be trained on.

    An input must be finite and a label a whole number below ``num_classes``; with None, targets are any finite numbers.
    The error names the record, so it is for the owner of the data and not public.
    """
    if num_classes is not None:
        validate.count(num_classes=num_classes)
    if len(records) == 0:
        raise BadRecord(0, reason="there are no records")
    for indices in torch.split(torch.arange(len(records)), _CHUNK):
        inputs, labels = records.batch(indices)
        parts: dict[str, Any] = {"input": inputs, "target": labels}
        for name, values in parts.items():
            if values.is_floating_point() or values.is_complex():
                _refuse(~torch.isfinite(values), values, indices, f"its {name} holds {{}}")
        if num_classes is not None:
            is_label = (labels >= 0) & (labels < num_classes) & (labels == labels.to(torch.int64))
            _refuse(~is_label, labels, indices, f"its label is {{}}, not a whole number from 0 to {num_classes - 1}")


def _refuse(is_bad: Tensor, values: Tensor, indices: Tensor, reason: str) -> None:
    if bool(is_bad.any()):
        first = tuple(torch.nonzero(is_bad)[0].tolist())
        raise BadRecord(int(indices[first[0]]), reason=reason.format(values[first].item()))


def check_count(*, stated: int, held: int) -> None:
    """Refuse a stated number of records that is off by more than ``MAX_COUNT_RATIO``.

    Batches would be as many times too small or too large. The number held is private and not in the error.
    """
    if not held <= MAX_COUNT_RATIO * stated <= MAX_COUNT_RATIO**2 * held:
        raise InvalidValue("records", allowed=f"within a factor of {MAX_COUNT_RATIO} of their number", given=stated)


def overlap(one: RecordSet, other: RecordSet) -> tuple[int, ...]:
    """Return the indices in ``other`` of the records whose input is also in ``one``.

    Records are compared as they are stored, so both sets must be of one kind. All files of streamed folders are read
    that may be equal.
    """
    if one.kind != other.kind:
        raise InvalidValue("other", allowed=f"records of {one.kind}, as the first are", given=other.kind)
    seen = set(_digests(one.possible_duplicates(other)))
    return tuple(index for index, digest in enumerate(_digests(other)) if digest in seen)


def is_mostly_in(part: RecordSet, whole: RecordSet) -> bool:
    """Return whether more than half of the records are in another set, judged by a sample of a streamed folder.

    Sets of different kinds count as disjoint.
    """
    if part.kind != whole.kind:
        return False
    sample = part.sample(_SKETCH_SIZE)
    return 2 * len(overlap(whole, sample)) > len(sample)


def sketch(records: RecordSet) -> frozenset[bytes]:
    """Return the smallest hashes of the inputs: two sets share about the same fraction of these as of records."""
    return frozenset(heapq.nsmallest(_SKETCH_SIZE, set(_digests(records.sample(_SKETCH_SIZE)))))


def _digests(records: RecordSet) -> Iterator[bytes]:
    return (hashlib.blake2b(content, digest_size=16).digest() for content in records.contents())


def read_dataset(dataset: Dataset[Any]) -> InMemory:
    """Return all records of a map-style data set, whose items are pairs of an input and a target.

    Each is a tensor, an array, a number or a Pillow image, which becomes bytes of shape CHW. Items are read once:
    random transforms are applied once and for all.
    """
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return InMemory(*dataset.tensors)
    if isinstance(dataset, IterableDataset):
        raise InvalidValue("dataset", allowed="map-style: sampling fetches records by index", given=type(dataset))
    records: list[tuple[Tensor, Tensor]] = []
    for index in range(len(dataset)):  # type: ignore[arg-type]
        try:
            inputs, target = map(_as_tensor, dataset[index])
        except Exception as error:  # the data set is the user's own code
            reason = f"it is not a pair of tensors, numbers or images: {type(error).__name__}: {error}"
            raise BadRecord(index, reason=reason) from error
        records.append((inputs, target))
        for given, first in zip(records[-1], records[0], strict=True):
            if given.shape != first.shape:
                raise BadRecord(
                    index, reason=f"it is of shape {tuple(given.shape)}, others are of {tuple(first.shape)}"
                )
    if not records:
        raise BadRecord(0, reason="there are no records")
    return InMemory(*map(torch.stack, zip(*records, strict=True)))


def _as_tensor(value: Any) -> Tensor:
    if not hasattr(value, "getbands"):
        return torch.as_tensor(value)
    pixels = np.array(value)  # a Pillow image
    return torch.from_numpy(pixels[..., None] if pixels.ndim == 2 else pixels).permute(2, 0, 1)
