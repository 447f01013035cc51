"""Canaries: records whose gradients are as large as a clip allows, each in a direction of its own.

A canary has a pattern of signs over the coordinates of a network that is made to carry it, and its gradient is that
pattern, far larger than any bound. What the clip leaves of it is then known: the pattern times what the rule allows
each coordinate. Under a bound on the norm a pattern can be one coordinate; under a bound for every layer it needs one
in each; under bounds for every coordinate it needs them all. Patterns of two canaries are orthogonal, so that the sum
over a draw, seen along the pattern of one, says nothing about the others.

Axes: B records of a batch, R rows (one for each pattern).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from scipy import linalg
from torch import Tensor, nn

from lehr import validate
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import Tensors

LOUDNESS = 1000.0  # of a gradient, in each coordinate of its pattern
# Targets: the pattern; its opposite, which stands in where records are replaced; nothing, where they are zeroed out.
PRESENT, REPLACED, ZEROED = 0, 1, 2
NUM_CLASSES = 3
LOUD_ROW = -1


class Canaries(Protocol):
    """The patterns of an attack, the network that carries them, and what else is in the data."""

    @property
    def num_canaries(self) -> int: ...

    def network(self) -> nn.Module:
        """A fresh network for them."""

    def records(self, rows: Tensor, targets: Tensor) -> InMemory:
        """The canaries of these rows, with all other records that are in the data for sure."""

    def public(self) -> InMemory:
        """A public record, for what looks at a public loss; it is no canary."""

    def sizes(self, clipped: Tensors) -> Tensors:
        """How large each coordinate of a clipped canary is, from what the clip left of the first one."""

    def along(self, values: Tensors) -> Tensor:
        """The inner products of values with all patterns: ``along_R``."""

    def expected(self, signs_R: Tensor, *, clips_coordinates: bool) -> Tensors:
        """The sum over all records of the data, before a draw, in units of ``sizes``; empty where none share one.

        ``signs_R`` are one for a canary that is there, minus one for one that was replaced, and zero for the others.
        """


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The output that the target names, loudly; the one of a record that is zeroed out has no gradient."""
    named = torch.where(targets == REPLACED, outputs[..., REPLACED], outputs[..., PRESENT])
    return LOUDNESS * torch.where(targets == ZEROED, outputs[..., ZEROED], named)


@dataclass(frozen=True, kw_only=True, eq=False)
class CoordinateCanaries:
    """A pattern is one coordinate of every layer."""

    num_canaries: int
    num_layers: int = 3

    def __post_init__(self) -> None:
        validate.count(num_canaries=self.num_canaries)
        validate.count(num_layers=self.num_layers)

    def network(self) -> nn.Module:
        return CoordinateNetwork(self.num_canaries + 1, self.num_layers)  # one row is that of the public record

    def records(self, rows: Tensor, targets: Tensor) -> InMemory:
        return InMemory(rows.view(-1, 1).float(), targets)

    def public(self) -> InMemory:
        return self.records(torch.tensor([self.num_canaries]), torch.tensor([PRESENT]))

    def sizes(self, clipped: Tensors) -> Tensors:
        return {name: value.abs().max() for name, value in clipped.items()}

    def along(self, values: Tensors) -> Tensor:
        return torch.stack([value.view(-1) for value in values.values()]).sum(0)[: self.num_canaries]

    def expected(self, signs_R: Tensor, *, clips_coordinates: bool) -> Tensors:
        return {}


class CoordinateNetwork(nn.Module):
    """Looks up the row of a record in every table, and adds up the values."""

    def __init__(self, num_rows: int, num_layers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(num_rows, 1) for _ in range(num_layers))
        for table in self.tables:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]
        self._num_rows = num_rows

    def forward(self, records_B: Tensor) -> Tensor:
        # Made-up records are tried beforehand, and on a GPU a row that is not there ends the whole process.
        rows_B = records_B[:, 0].long().clamp(0, self._num_rows - 1)
        carried = torch.stack([table(rows_B) for table in self.tables]).sum(0)
        return torch.cat([carried, -carried, 0 * carried], dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class SignCanaries:
    """A pattern is a sign for every coordinate: a row of a Hadamard matrix, which is orthogonal to all other rows.

    The matrix is a product of small ones: over the two layers, and over both sides of the square that a layer is folded
    to. Rows are turned so that in no coordinate all of them agree, which would make it louder than the others.

    Beside the canaries there are ``num_loud`` records which are there for sure, and alike: their gradient is large in
    a quarter of the coordinates and zero in the others, so that bounds which follow gradients come to differ. The four
    patterns that are not orthogonal to it are not used.
    """

    side: int = 64
    num_loud: int = 512

    def __post_init__(self) -> None:
        if validate.count(minimum=4, side=self.side) & (self.side - 1):
            raise InvalidValue("side", allowed="a power of two", given=self.side)
        validate.count(minimum=0, num_loud=self.num_loud)

    @property
    def num_canaries(self) -> int:
        return len(self._rows)

    def network(self) -> nn.Module:
        return SignNetwork(self.side)

    def records(self, rows: Tensor, targets: Tensor) -> InMemory:
        loud = torch.full((self.num_loud,), LOUD_ROW)
        inputs = torch.cat([self._rows[rows], loud]).view(-1, 1).float()
        return InMemory(inputs, torch.cat([targets, torch.full((self.num_loud,), PRESENT)]))

    def public(self) -> InMemory:
        return InMemory(torch.zeros(1, 1), torch.tensor([PRESENT]))  # the first row, which is not used

    def sizes(self, clipped: Tensors) -> Tensors:
        return {name: value.abs() for name, value in clipped.items()}

    def along(self, values: Tensors) -> Tensor:
        signs = hadamard(self.side).double()
        layers = torch.stack([value.double().view(self.side, self.side) for value in values.values()])
        first, second = signs @ layers @ signs
        return torch.stack([first + second, first - second]).mul(signs).view(-1)[self._rows]

    def expected(self, signs_R: Tensor, *, clips_coordinates: bool) -> Tensors:
        all_rows = torch.zeros(2 * self.side**2, dtype=torch.float64)
        all_rows[self._rows] = signs_R.double()
        signs = hadamard(self.side).double()
        first, second = all_rows.view(2, self.side, self.side) * signs
        summed = (signs @ torch.stack([first + second, first - second]) @ signs).view(2, -1)
        # A loud record has a quarter of the coordinates, and under a bound on the norm twice as much in each.
        summed += (1 if clips_coordinates else 2) * self.num_loud * _loud(self.side).double()
        return {"first.weight": summed[:1], "second.weight": summed[1:]}

    @cached_property
    def _rows(self) -> Tensor:
        """Those of the matrix that are orthogonal to the loud records: all that change within a half of a layer."""
        within_layer = torch.arange(2 * self.side**2) % self.side**2
        return ((within_layer != 0) & (within_layer != self.side**2 // 2)).nonzero().squeeze(1)


class SignNetwork(nn.Module):
    """The inner product of the weights with the pattern of a record."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(side * side, 1, bias=False) for _ in range(2))
        nn.init.zeros_(self.first.weight)
        nn.init.zeros_(self.second.weight)
        self.side = side
        self.signs: Tensor
        self.loud: Tensor
        self.register_buffer("signs", hadamard(side), persistent=False)
        self.register_buffer("loud", _loud(side), persistent=False)

    def forward(self, records_B: Tensor) -> Tensor:
        rows_B, area = records_B[:, 0].long(), self.side**2
        high_B, low_B = rows_B.remainder(area) // self.side, rows_B.remainder(self.side)
        # How a row is turned is a bent function of it: in every coordinate the turned rows all but cancel.
        high = self.signs[high_B] * self.signs[high_B, low_B].unsqueeze(1)
        pattern = (high.unsqueeze(2) * self.signs[low_B].unsqueeze(1)).flatten(1)
        second = pattern * torch.where(rows_B >= area, -1.0, 1.0).unsqueeze(1)
        is_loud = (rows_B == LOUD_ROW).unsqueeze(1)
        carried = self.first(torch.where(is_loud, self.loud[0], pattern))
        carried = carried + self.second(torch.where(is_loud, self.loud[1], second))
        return torch.cat([carried, -carried, 0 * carried], dim=1)


def _loud(side: int) -> Tensor:
    """One in a quarter of the coordinates: half of the first of two layers."""
    loud = torch.zeros(2, side, side)
    loud[0, : side // 2] = 1.0
    return loud.view(2, -1)


def hadamard(size: int) -> Tensor:
    """Sylvester's matrix of signs: its rows are orthogonal. The size is a power of two.

    >>> hadamard(2)
    tensor([[ 1.,  1.],
            [ 1., -1.]])
    """
    return torch.from_numpy(linalg.hadamard(size)).float()
