"""Records held as two tensors, on whichever device they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lehr.data import record_bytes
from lehr.errors import BadRecord, InvalidValue


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
            what = "target" if num_targets < num_inputs else "input"
            raise BadRecord(
                min(num_inputs, num_targets),
                reason=f"it has no {what}: there are {num_inputs} inputs and {num_targets} targets",
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        # Neither the values nor how many there are: where the records are private, so is their number.
        return f"InMemory(inputs {self.inputs.dtype} {tuple(self.inputs.shape[1:])}, on {self.inputs.device})"

    def batch(self, places_B: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803
        """Inputs and targets of the records at these places."""
        places = places_B.to(self.inputs.device)
        return self.inputs.index_select(0, places), self.targets.index_select(0, places.to(self.targets.device))

    def at(self, places: Tensor) -> Self:
        """Only the records at these places."""
        return type(self)(*self.batch(places))

    def to(self, device: torch.device | str) -> Self:
        """The same records on a device."""
        return type(self)(self.inputs.to(device), self.targets.to(device))

    def targets_to(self, device: torch.device | str) -> Self:
        """The same records, with nothing but their targets on a device."""
        return type(self)(self.inputs, self.targets.to(device))

    @property
    def kind(self) -> object:
        """Records are compared as they are stored: of one type and one shape."""
        return self.inputs.dtype, tuple(self.inputs.shape[1:])

    def contents(self) -> Iterator[memoryview]:
        """The bytes of every record's input, in order."""
        return record_bytes.contents(self.inputs)

    def identity(self, role: str) -> Iterator[bytes | memoryview]:
        """Everything: types, shapes and all bytes."""
        for tensor in (self.inputs, self.targets):
            yield f"{role} {tensor.dtype} {tuple(tensor.shape)}".encode()
            yield tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data
