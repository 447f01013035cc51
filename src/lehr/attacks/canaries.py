"""Canaries: records whose gradients are as large as a clip allows, each in a direction of its own.

A canary has a pattern of signs over the coordinates of a network that is made to carry it, and its gradient is that
pattern, far larger than any bound. What the clip leaves of it is then known: the pattern times what the rule allows
each coordinate. Under a bound on the norm a pattern can be one coordinate; under a bound for every layer it needs one
in each; under bounds for every coordinate it needs them all. Patterns of two canaries are orthogonal, so that the sum
over a draw, seen along the pattern of one, says nothing about the others.

Axes: B records of a batch, R rows (one for each pattern).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr import validate
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import Tensors

LOUDNESS = 1000.0  # of a gradient, in each coordinate of its pattern
PRESENT, REPLACED = 0, 1  # targets: the pattern, and its opposite, which stands in where records are replaced
LOUD_ROW = -1
FIRST_CLASS = 2  # targets from here on are classes, of records that belong to the host of the canaries


class Canaries(Protocol):
    """The patterns of an attack, the network that carries them, and what else is in the data."""

    @property
    def num_canaries(self) -> int:
        """How many there are."""

    @property
    def num_classes(self) -> int:
        """How many targets there are."""

    def network(self) -> nn.Module:
        """A fresh network for them."""

    def records(self, rows: Tensor, targets: Tensor) -> InMemory:
        """The canaries of these rows, with all that is there besides."""

    def public(self) -> InMemory:
        """A public record, for what looks at a public loss; no canary's."""

    def sizes(self, clipped: Tensors) -> Tensors:
        """How large each coordinate of a clipped canary is, from what the clip left of the first one."""

    def along(self, values: Tensors) -> Tensor:
        """The inner products of values with all patterns: ``along_R``."""

    def total(self, values: Tensors) -> float:
        """The sum of values over the coordinates of a pattern."""

    def expected(self, signs_R: Tensor, *, clips_coordinates: bool) -> Tensors:
        """The sum over all records of the data, before a draw, in units of ``sizes``; zero where it is in nobody's way.

        ``signs_R`` are one for a canary that is there, minus one for one that was replaced, and zero for the others.
        """


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of a canary, the output that its target names, loudly; of other records, the cross entropy of the host's."""
    is_canary = targets < FIRST_CLASS
    canaries = LOUDNESS * torch.where(targets == REPLACED, outputs[..., REPLACED], outputs[..., PRESENT])
    if outputs.shape[-1] == FIRST_CLASS:
        return canaries
    classes = torch.where(is_canary, 0, targets - FIRST_CLASS)
    return torch.where(is_canary, canaries, cross_entropy(outputs[..., FIRST_CLASS:], classes, reduction="none"))


@dataclass(frozen=True, kw_only=True, eq=False)
class Host:
    """A network that is trained beside the canaries, on records of its own, which are in the data for sure."""

    network: nn.Module
    records: InMemory  # flat inputs, and classes from zero on
    num_classes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class CoordinateCanaries:
    """A pattern is one coordinate of every layer that carries canaries."""

    num_canaries: int
    num_layers: int = 3
    host: Host | None = None

    def __post_init__(self) -> None:
        validate.count(num_canaries=self.num_canaries)
        validate.count(num_layers=self.num_layers)

    @property
    def num_classes(self) -> int:
        return FIRST_CLASS + (0 if self.host is None else self.host.num_classes)

    def network(self) -> nn.Module:
        host = None if self.host is None else copy.deepcopy(self.host.network)
        return CoordinateNetwork(self.num_canaries + 1, self.num_layers, host)  # one row is the public record's

    def records(self, rows: Tensor, targets: Tensor) -> InMemory:
        inputs = self._inputs(rows)
        if self.host is None:
            return InMemory(inputs, targets)
        others = self.host.records
        nobody = torch.full((len(others), 1), float(self.num_canaries))
        inputs = torch.cat([inputs, torch.cat([nobody, others.inputs], dim=1)])
        return InMemory(inputs, torch.cat([targets, others.targets + FIRST_CLASS]))

    def public(self) -> InMemory:
        return InMemory(self._inputs(torch.tensor([self.num_canaries])), torch.tensor([PRESENT]))

    def sizes(self, clipped: Tensors) -> Tensors:
        return {name: value.abs().max() for name, value in self._carrying(clipped).items()}

    def along(self, values: Tensors) -> Tensor:
        return torch.stack([value.view(-1) for value in self._carrying(values).values()]).sum(0)[: self.num_canaries]

    def total(self, values: Tensors) -> float:
        return sum(float(value) for value in values.values())

    def expected(self, signs_R: Tensor, *, clips_coordinates: bool) -> Tensors:
        return {}  # no two records share a coordinate

    def _carrying(self, values: Tensors) -> dict[str, Tensor]:
        return {name: value for name, value in values.items() if name.startswith("tables.")}

    def _inputs(self, rows: Tensor) -> Tensor:
        """A record is its row, and behind it, where there is a host, an empty record of the host's."""
        width = 0 if self.host is None else self.host.records.inputs.shape[1]
        return torch.cat([rows.view(-1, 1).float(), torch.zeros(len(rows), width)], dim=1)


class CoordinateNetwork(nn.Module):
    """Looks up the row of a record in every table, and adds up what it finds."""

    def __init__(self, num_rows: int, num_layers: int, host: nn.Module | None) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(num_rows, 1) for _ in range(num_layers))
        for table in self.tables:
            nn.init.zeros_(table.weight)  # type: ignore[arg-type]
        self._num_rows = num_rows
        self.host = host

    def forward(self, records_B: Tensor) -> Tensor:
        # Made-up records are tried beforehand, and on a GPU a row that is not there ends the whole process.
        rows_B = records_B[:, 0].long().clamp(0, self._num_rows - 1)
        carried = torch.stack([table(rows_B) for table in self.tables]).sum(0)
        both = torch.cat([carried, -carried], dim=1)
        return both if self.host is None else torch.cat([both, self.host(records_B[:, 1:])], dim=1)


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

    num_classes = FIRST_CLASS

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
        return self._transformed(torch.stack([value.view(-1) for value in values.values()]))[self._rows]

    def total(self, values: Tensors) -> float:
        return sum(float(value.sum()) for value in values.values())

    def expected(self, signs_R: Tensor, *, clips_coordinates: bool) -> Tensors:
        all_rows = torch.zeros(2 * self.side**2, dtype=torch.float64)
        all_rows[self._rows] = signs_R.double()
        # A loud record has a quarter of the coordinates, and under a bound on the norm twice as much in each.
        loud = (1 if clips_coordinates else 2) * self.num_loud * _loud(self.side).double()
        summed = self._summed(all_rows) + loud
        return {name: part.view(1, -1) for name, part in zip(SignNetwork.NAMES, summed, strict=True)}

    def _transformed(self, values: Tensor) -> Tensor:
        """The inner products with every row, from the two layers of values."""
        signs = hadamard(self.side).double()
        first, second = signs @ values.double().view(2, self.side, self.side) @ signs
        return torch.stack([first + second, first - second]).mul(signs).view(-1)

    def _summed(self, of_rows: Tensor) -> Tensor:
        """The sum of all rows, each as often as is said."""
        signs = hadamard(self.side).double()
        turned = of_rows.view(2, self.side, self.side) * signs
        return (signs @ torch.stack([turned[0] + turned[1], turned[0] - turned[1]]) @ signs).view(2, -1)

    @cached_property
    def _rows(self) -> Tensor:
        """Those of the matrix that are orthogonal to the loud records: all that change within a half of a layer."""
        within_layer = torch.arange(2 * self.side**2) % self.side**2
        return ((within_layer != 0) & (within_layer != self.side**2 // 2)).nonzero().squeeze(1)


class SignNetwork(nn.Module):
    """The inner product of the weights with the pattern of a record."""

    NAMES = ("first.weight", "second.weight")

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
        return torch.cat([carried, -carried], dim=1)


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
    if size == 1:
        return torch.ones(1, 1)
    return torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), hadamard(size // 2))
