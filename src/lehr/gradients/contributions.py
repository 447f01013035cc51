"""The forms in which a parameter's part of every record's gradient is held, none larger than it has to be.

    Materialised   the gradients themselves: biases, gains, small weights
    Outer          a sum of outer products over positions: linear layers
    Lookup         rows of an embedding table
    Convolved      the weight of a convolution (``convolutions``)
    TiledHead      the head of a language model under its cross entropy, computed again in tiles of the vocabulary
    Stacked        blocks of rows of one parameter that are used separately
    Through        a weight that is computed from parameters, such as a normalised one
    Unused         zeros
    Shared         several uses of different kinds; ``together`` makes the cheapest form for several uses
    ContributedGradients   all parameters: the norms and weighted sums that a clip rule asks for

Gradients that have to be formed for a norm are formed a few records at a time, so that memory stays bounded. Which
form is taken, and how many records are formed at once, follows from shapes alone.

Axes: B records, T positions (views and sequence together), O outputs, I inputs, D columns of a table, N images
(records times views), C input channels, S and P positions before and after a convolution, G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, prod
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Size, Tensor
from torch.nn.functional import linear

from lehr.gradients.batches import check_groups, weight_of_each
from lehr.gradients.convolutions import (
    HAS_TRITON,
    ONE_PLACE,
    Convolved,
    as_images,
    gram_sums,
    more_views,
    triton_norms,
    weighted_outer,
)
from lehr.gradients.precision import (
    HALF,
    batched_product,
    keep,
    records_at_once,
    rounding_of,
    rounding_of_scaling,
    rounding_of_sum,
    rows,
    squares_at_most,
    sum_of_products,
    sum_of_squares,
    sum_over_records,
    uncast,
    weigh,
    weighted_rows_of,
)
from lehr.interfaces import Contribution, Groups, at_least_float32

FORMED_BYTES = 64 * 2**20
# A compiled step has every chunk written out, so there may not be many of them; then each may be larger.
MOST_COMPILED_CHUNKS = 16
KEPT_BYTES = 64 * 2**20
SMALL = 4096  # numbers of one record's gradient
JOINED_BYTES = 256 * 2**20  # of gradients that are stored on a GPU
TILE_ROWS = 8192  # of a head over a large vocabulary


def _once(compute: Callable[[Any], Any]) -> property:
    """A property that is computed once. In Python 3.11 ``cached_property`` has a lock, which cannot be compiled."""
    name = f"{compute.__name__}_computed"

    def get(self: Any) -> Any:
        if getattr(self, name, None) is None:
            object.__setattr__(self, name, compute(self))
        return getattr(self, name)

    return property(get)


@dataclass(frozen=True)
class Materialised:
    """The gradients themselves, ``grads_B...``."""

    grads: Tensor

    @property
    def records(self) -> int:
        return self.grads.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.grads.shape[1:])

    def squared_norms(self) -> Tensor:
        return sum_of_squares(self.grads)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        return weighted_rows_of(self.grads, weights_B, counted_B)

    def materialised(self) -> Tensor:
        return self.grads

    def taken(self, first: int, last: int) -> Materialised:
        return Materialised(self.grads[first:last])


@runtime_checkable
class Divisible(Contribution, Protocol):
    """A contribution that can be asked for some of its records only; ``shape`` is that of one record's part."""

    @property
    def records(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def taken(self, first: int, last: int) -> Contribution: ...


def squared_norms_by_forming(
    uses: Sequence[Contribution], formed: Callable[[Sequence[Contribution]], Tensor]
) -> Tensor:
    """The squared norms of ``formed(uses)``, records first. What cannot be divided is formed at once."""
    divisible = [use for use in uses if isinstance(use, Divisible)]
    if len(divisible) < len(uses):
        return sum_of_squares(formed(uses))
    records = divisible[0].records
    fitting = FORMED_BYTES // max(1, 4 * prod(divisible[0].shape))
    together = max(fitting, ceil(records / MOST_COMPILED_CHUNKS) if torch.compiler.is_compiling() else 1, 1)
    firsts = range(0, max(records, 1), together)
    chunks = ([use.taken(first, min(first + together, records)) for use in divisible] for first in firsts)
    return torch.cat([sum_of_squares(formed(chunk)) for chunk in chunks])


def outer(output_grads_BTO: Tensor, inputs_BTI: Tensor, rows: int | None = None) -> Outer | Materialised:
    """The form that takes less work. A gradient that is formed and small is kept, and summed as its norm was taken."""
    found = Outer(output_grads_BTO, inputs_BTI, rows)
    is_small = 4 * found.records * prod(found.shape) <= KEPT_BYTES
    return Materialised(found.materialised()) if found.is_formed and is_small else found


@dataclass(frozen=True)
class Outer:
    """``sum over t of output_grads[b, t] ⊗ inputs[b, t]``.

    The norm comes from the products of positions among themselves (Goodfellow 2015; Li et al. 2022, "Large Language
    Models Can Be Strong Differentially Private Learners") or from the gradient, whichever takes fewer multiplications.
    """

    output_grads_BTO: Tensor  # noqa: N815
    inputs_BTI: Tensor  # noqa: N815
    rows: int | None = None  # of the parameter, where further columns of the output gradients are padding: zeros

    @property
    def records(self) -> int:
        return self.inputs_BTI.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        outputs = self.output_grads_BTO.shape[2]
        return (outputs if self.rows is None else self.rows, self.inputs_BTI.shape[2])

    @property
    def is_formed(self) -> bool:
        """Whether the gradient itself takes fewer multiplications than the products between positions."""
        positions, (outputs, inputs) = self.output_grads_BTO.shape[1], self.shape
        return positions > 1 and positions * (outputs + inputs) >= outputs * inputs

    @property
    def is_for_triton(self) -> bool:
        """Whether the Triton kernels take it: sequences in bfloat16, on a GPU."""
        factors = (self.output_grads_BTO, self.inputs_BTI)
        is_narrow = all(factor.is_cuda and factor.dtype is torch.bfloat16 for factor in factors)
        return HAS_TRITON and is_narrow and self.inputs_BTI.shape[1] > 1

    def squared_norms(self) -> Tensor:
        positions, (outputs, inputs) = self.output_grads_BTO.shape[1], self.shape
        if self.is_for_triton and not self.is_formed:
            products_B, apart_B, lengths_B, left_B, right_B = self._gram_sums
        else:
            left_BT, right_BT = squares_at_most(self.output_grads_BTO, [2]), squares_at_most(self.inputs_BTI, [2])
            if positions == 1:
                return (left_BT * right_BT).squeeze(1)
            lengths_B, apart_B = (left_BT.sqrt() * right_BT.sqrt()).sum(1), (left_BT * right_BT).sum(1)
            left_B, right_B = left_BT.sum(1), right_BT.sum(1)
            if not self.is_formed:
                products_BTT = _gram(self.output_grads_BTO) * _gram(self.inputs_BTI)
                apart_B, products_B = products_BTT.diagonal(dim1=1, dim2=2).sum(1), products_BTT.sum((1, 2))
        if self.is_formed:
            squared_B = self._squares_by_tiles()
        else:
            tiny = positions * torch.finfo(left_B.dtype).tiny
            lost_B = (outputs * tiny) * right_B + (inputs * tiny) * left_B
            squared_B = products_B.clamp_min(0) + rounding_of(apart_B) + lost_B
        dtype = self.output_grads_BTO.dtype
        squared_B = squared_B + rounding_of_sum(lengths_B, dtype, lengths_B.device)
        if dtype not in HALF or self.is_for_triton:  # the kernels scale what they have multiplied, and round no factor
            return squared_B
        return squared_B + rounding_of_scaling(apart_B, dtype, positions=positions)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        if self.is_for_triton:
            return self._sum_by_triton(weights_B, counted_B)[: self.rows]
        # The narrower factor is scaled, in float32: with a head over a large vocabulary the other is many times larger.
        wide, narrow = self.output_grads_BTO, self.inputs_BTI
        is_turned = wide.shape[2] < narrow.shape[2]
        if is_turned:
            wide, narrow = narrow, wide
        found = sum_of_products(weigh(narrow, weights_B, counted_B), keep(wide, counted_B))
        return (found if is_turned else found.T)[: self.rows]

    def _sum_by_triton(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        # A weight that is not a number marks a record that is not counted.
        marked_B = torch.where(counted_B, weights_B.float(), torch.nan)

        def sum_of(some: slice) -> Tensor:
            found: Tensor = weighted_outer(self.inputs_BTI[some], self.output_grads_BTO[some], marked_B[some])
            return found

        at_once = records_at_once(torch.bfloat16, positions=self.inputs_BTI.shape[1])
        return sum_over_records(self.records, sum_of, at_once=at_once)

    @_once
    def _gram_sums(self) -> tuple[Tensor, ...]:
        return tuple(gram_sums(self.inputs_BTI, self.output_grads_BTO))

    def _squares_by_tiles(self) -> Tensor:
        """The squared norms of the gradients, formed for some records and some outputs at a time."""
        if self.is_for_triton:
            images = (as_images(factor) for factor in (self.inputs_BTI, self.output_grads_BTO))
            found: Tensor = triton_norms(*images, ONE_PLACE.flat(), self.records)
            return found
        outputs, inputs = self.shape
        fitting = FORMED_BYTES // max(1, 4 * inputs)
        if torch.compiler.is_compiling():
            fitting = max(fitting, ceil(self.records * outputs / MOST_COMPILED_CHUNKS))
        at_once, width = max(1, fitting // max(1, outputs)), max(1, min(outputs, fitting))
        parts = []
        for first in range(0, max(1, self.records), at_once):
            grads, values = (factor[first : first + at_once] for factor in (self.output_grads_BTO, self.inputs_BTI))
            tiles = (Outer(grads[..., left : left + width], values) for left in range(0, outputs, width))
            parts.append(torch.stack([sum_of_squares(tile.materialised()) for tile in tiles]).sum(0))
        return torch.cat(parts)

    def materialised(self) -> Tensor:
        return batched_product(self.output_grads_BTO.transpose(1, 2), self.inputs_BTI)[:, : self.rows]

    def taken(self, first: int, last: int) -> Outer:
        return Outer(self.output_grads_BTO[first:last], self.inputs_BTI[first:last], self.rows)

    def squares_apart(self) -> Tensor:
        """What the squared norm would be if no two positions met."""
        if self.is_for_triton and not self.is_formed:
            apart_B: Tensor = self._gram_sums[1]
            return apart_B
        exact = at_least_float32(self.inputs_BTI.dtype)
        left, right = (values.to(exact).square().sum(2) for values in (self.output_grads_BTO, self.inputs_BTI))
        return (left * right).sum(1)


def head_tiles(vocabulary: int) -> list[tuple[int, int]]:
    """First and last rows of a head's tiles. Of how many records there are they know nothing.

    >>> head_tiles(20_000)
    [(0, 8192), (8192, 16384), (16384, 20000)]
    """
    width = max(TILE_ROWS, ceil(vocabulary / MOST_COMPILED_CHUNKS))
    return [(first, min(first + width, vocabulary)) for first in range(0, vocabulary, width)]


@dataclass(frozen=True)
class TiledHead:
    """``Outer`` for a head under softmax cross entropy, with output gradients that are computed again tile by tile.

    ``output_grads[b, t]`` is ``scales[b, t]`` times the softmax of the logits less the one-hot label, of which only
    ``normalisers``, the logarithm of the sum of exponentials, is kept.
    """

    weight_VI: Tensor  # noqa: N815
    inputs_BTI: Tensor  # noqa: N815
    labels_BT: Tensor  # noqa: N815
    scales_BT: Tensor  # noqa: N815
    normalisers_BT: Tensor  # noqa: N815

    @property
    def records(self) -> int:
        return self.inputs_BTI.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight_VI.shape)

    def tiles(self) -> Iterator[tuple[int, Outer]]:
        """The first row of each tile, and its rows' part of the gradient."""
        for first, last in head_tiles(self.shape[0]):
            logits = linear(self.inputs_BTI, self.weight_VI[first:last].to(self.inputs_BTI.dtype))
            logits = logits.to(at_least_float32(logits.dtype))
            shares = (logits - self.normalisers_BT.unsqueeze(2)).exp()
            rows_V = torch.arange(first, last, device=logits.device)
            is_label = self.labels_BT.unsqueeze(2) == rows_V
            grads = (shares - is_label.to(shares.dtype)) * self.scales_BT.unsqueeze(2)
            yield first, Outer(grads.to(self.inputs_BTI.dtype), self.inputs_BTI)

    def squared_norms(self) -> Tensor:
        return torch.stack([tile.squared_norms() for _, tile in self.tiles()]).sum(0)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        return torch.cat([tile.weighted_sum(weights_B, counted_B) for _, tile in self.tiles()])

    def materialised(self) -> Tensor:
        return torch.cat([tile.materialised() for _, tile in self.tiles()], dim=1)

    def taken(self, first: int, last: int) -> TiledHead:
        others = (self.inputs_BTI, self.labels_BT, self.scales_BT, self.normalisers_BT)
        return TiledHead(self.weight_VI, *(other[first:last] for other in others))

    def squares_apart(self) -> Tensor:
        """What the squared norm would be if no two positions met."""
        return torch.stack([tile.squares_apart() for _, tile in self.tiles()]).sum(0)


def _gram(one_BTD: Tensor, other_BTD: Tensor | None = None) -> Tensor:
    """The products between all positions of two tensors, or of one, for each record."""
    return batched_product(one_BTD, (one_BTD if other_BTD is None else other_BTD).transpose(1, 2))


@dataclass(frozen=True)
class Lookup:
    """``output_grads[b, t]`` added to row ``rows[b, t]``."""

    rows_BT: Tensor  # noqa: N815
    output_grads_BTD: Tensor  # noqa: N815
    num_rows: int

    @property
    def records(self) -> int:
        return self.rows_BT.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_rows, self.output_grads_BTD.shape[2])

    def squared_norms(self) -> Tensor:
        if self.rows_BT.shape[1] == 1:
            return sum_of_squares(self._exact())
        lengths_B = squares_at_most(self._exact(), [2]).sqrt().sum(1)
        # What is summed is formed a second time, and on a GPU in another order.
        rounding_B = (2 * torch.finfo(lengths_B.dtype).eps * lengths_B).square()
        return sum_of_squares(self._row_by_row()[1]) + rounding_B

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        nothing = self.output_grads_BTD.new_zeros(self.shape, dtype=torch.float64)
        return self.added_to(nothing, weights_B, counted_B)

    def added_to(self, total: Tensor, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        """The total, in float64, with the weighted sum added."""
        rows_BT, grads = self._row_by_row()
        scaled = weigh(grads, weights_B, counted_B).flatten(0, 1).double()
        return total.double().index_add(0, rows_BT.flatten(), scaled)

    def materialised(self) -> Tensor:
        grads = self._exact()
        dense = grads.new_zeros(grads.shape[0], *self.shape)
        return dense.scatter_add(1, self.rows_BT.unsqueeze(2).expand_as(grads), grads)

    def taken(self, first: int, last: int) -> Lookup:
        return Lookup(self.rows_BT[first:last], self.output_grads_BTD[first:last], self.num_rows)

    def squares_apart(self) -> Tensor:
        """What the squared norm would be if no two positions met."""
        return sum_of_squares(self.output_grads_BTD)

    def _row_by_row(self) -> tuple[Tensor, Tensor]:
        """What each record adds to each different row that it looks up, in as many slots as there are positions."""
        rows_BT, slots_BT = self._slots
        grads = self._exact()
        return rows_BT, torch.zeros_like(grads).scatter_add(1, slots_BT.unsqueeze(2).expand_as(grads), grads)

    @_once
    def _slots(self) -> tuple[Tensor, Tensor]:
        """The row of each slot, and the slot of each position."""
        ordered_BT, order_BT = self.rows_BT.sort(dim=1)
        ordered_slots_BT = (ordered_BT.diff(dim=1, prepend=ordered_BT[:, :1]) != 0).cumsum(1)
        slots_BT = torch.zeros_like(order_BT).scatter(1, order_BT, ordered_slots_BT)
        return torch.zeros_like(ordered_BT).scatter(1, ordered_slots_BT, ordered_BT), slots_BT

    def _exact(self) -> Tensor:
        return self.output_grads_BTD.to(at_least_float32(self.output_grads_BTD.dtype))


@dataclass(frozen=True)
class Stacked:
    """Blocks of rows in order, such as the query, key and value parts of an attention."""

    blocks: tuple[Contribution, ...]

    def squared_norms(self) -> Tensor:
        return torch.stack([block.squared_norms() for block in self.blocks]).sum(0)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        return torch.cat([block.weighted_sum(weights_B, counted_B) for block in self.blocks])

    def materialised(self) -> Tensor:
        return torch.cat([block.materialised() for block in self.blocks], dim=1)


@dataclass(frozen=True)
class Through:
    """``pullback`` takes the gradient of the computed weight to the gradient of one parameter behind it.

    It is the same for every record and linear, so the weighted sum goes through once; for the norms the gradients of a
    few records at a time go through.
    """

    computed: Contribution
    pullback: Callable[[Tensor], Tensor]

    def squared_norms(self) -> Tensor:
        return squared_norms_by_forming([self.computed], lambda uses: self._sent_through(uses[0]))

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        return self.pullback(self.computed.weighted_sum(weights_B, counted_B))

    def materialised(self) -> Tensor:
        return self._sent_through(self.computed)

    def _sent_through(self, computed: Contribution) -> Tensor:
        grads = computed.materialised()
        if not grads.shape[0]:  # vmap has no empty maps
            one = self.pullback(grads.new_zeros(grads.shape[1:]))
            return one.new_zeros(0, *one.shape)
        return torch.func.vmap(self.pullback)(grads)


@dataclass(frozen=True)
class Unused:
    """Zeros. ``like`` is any tensor on the same device and of the same type."""

    shape: Size
    records: int
    like: Tensor

    def squared_norms(self) -> Tensor:
        return self._zeros(self.records)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        return self._zeros(*self.shape)

    def materialised(self) -> Tensor:
        return self._zeros(self.records, *self.shape)

    def _zeros(self, *shape: int) -> Tensor:
        return self.like.new_zeros(shape, dtype=at_least_float32(self.like.dtype))


@dataclass(frozen=True)
class Shared:
    """Uses of one parameter that are of different kinds, such as an embedding table that is also the last layer.

    Their gradients add up before a norm is taken. The products between lookups and outer products need no gradient to
    be formed; the rest is formed.
    """

    uses: tuple[Contribution, ...]

    def squared_norms(self) -> Tensor:
        factored = [use for use in self.uses if isinstance(use, Outer | Lookup | TiledHead)]
        if len(factored) < len(self.uses):
            return squared_norms_by_forming(self.uses, sum_of)
        own = torch.stack([use.squared_norms() for use in factored]).sum(0)
        between = torch.stack([_inner(one, other) for one, other in combinations(factored, 2)]).sum(0)
        squares_apart = torch.stack([use.squares_apart() for use in factored]).sum(0)
        return (own + 2 * between).clamp_min(0) + rounding_of(squares_apart)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        lookups = [use for use in self.uses if isinstance(use, Lookup)]
        others = [use.weighted_sum(weights_B, counted_B) for use in self.uses if not isinstance(use, Lookup)]
        total = sum(others[1:], others[0]) if others else lookups.pop().weighted_sum(weights_B, counted_B)
        for lookup in lookups:  # rows are added where they belong: a table of zeros would be as large as the sum
            total = lookup.added_to(total, weights_B, counted_B)
        return total

    def materialised(self) -> Tensor:
        return sum_of(self.uses)


def sum_of(uses: Sequence[Contribution]) -> Tensor:
    """Every record's gradient, summed over all uses."""
    return torch.stack([use.materialised() for use in uses]).sum(0)


def _inner(one: Outer | Lookup | TiledHead, other: Outer | Lookup | TiledHead) -> Tensor:
    """The inner product of two uses, per record, without forming either."""
    if isinstance(one, TiledHead):
        one, other = other, one
    if isinstance(other, TiledHead):
        return torch.stack([_inner(_rows_of(one, first, tile), tile) for first, tile in other.tiles()]).sum(0)
    assert not isinstance(one, TiledHead)
    if isinstance(one, Outer) and isinstance(other, Outer):
        grams = _gram(one.output_grads_BTO, other.output_grads_BTO), _gram(one.inputs_BTI, other.inputs_BTI)
        return (grams[0] * grams[1]).sum((1, 2))
    if isinstance(one, Lookup) and isinstance(other, Lookup):
        same = one.rows_BT.unsqueeze(2) == other.rows_BT.unsqueeze(1)
        return _gram(one.output_grads_BTD, other.output_grads_BTD).where(same, 0).sum((1, 2))
    if isinstance(one, Outer) and isinstance(other, Lookup):
        one, other = other, one
    assert isinstance(one, Lookup)
    assert isinstance(other, Outer)
    rows_BTT = one.rows_BT.unsqueeze(1).expand(-1, other.output_grads_BTO.shape[1], -1)
    met = other.output_grads_BTO.gather(2, rows_BTT)  # the output gradient of each looked-up row, at each position
    products = _gram(other.inputs_BTI, one.output_grads_BTD)
    return (met.to(products.dtype) * products).sum((1, 2))


def _rows_of(use: Outer | Lookup | TiledHead, first: int, tile: Outer) -> Outer | Lookup:
    """A use's part of the rows that a tile has, counted from its first row."""
    rows = tile.shape[0]
    if isinstance(use, Outer):
        return Outer(use.output_grads_BTO[..., first : first + rows], use.inputs_BTI)
    if isinstance(use, TiledHead):  # two heads with one table: the tiles are the same
        return next(own for start, own in use.tiles() if start == first)
    rows_BT = use.rows_BT - first
    is_inside = (rows_BT >= 0) & (rows_BT < rows)
    grads = torch.where(is_inside.unsqueeze(2), use.output_grads_BTD, 0)
    return Lookup(rows_BT.clamp(0, rows - 1), grads, rows)


def together(uses: Sequence[Contribution]) -> Contribution:
    """All uses of one parameter as one contribution, in the cheapest form that counts the products between them."""
    if len(uses) == 1:
        return uses[0]
    kind = type(uses[0]) if all(type(use) is type(uses[0]) for use in uses) else None
    same: list[Any] = list(uses)
    if kind is Outer:  # more positions
        grads, inputs = [use.output_grads_BTO for use in same], [use.inputs_BTI for use in same]
        return Outer(torch.cat(grads, dim=1), torch.cat(inputs, dim=1), same[0].rows)
    if kind is Lookup:
        rows_BT, grads = [use.rows_BT for use in same], [use.output_grads_BTD for use in same]
        return Lookup(torch.cat(rows_BT, dim=1), torch.cat(grads, dim=1), same[0].num_rows)
    if kind is Materialised:
        return Materialised(sum_of(uses))
    if kind is Convolved:
        sizes = {(use.geometry, use.inputs_NCS.shape[1:], use.output_grads_NOP.shape[1:]) for use in same}
        if len(sizes) == 1:
            return more_views(same)
    return Shared(tuple(uses))


class ContributedGradients:
    """Per-record gradients as contributions: norms from each, sums from each, nothing stored in between.

    ``kept(name, sum)`` is called with each parameter's sum as soon as it is there, and its result takes the place of
    the sum. A record's gradient is ``scale`` times what the contributions say; norms and weights include it.
    ``squared`` has squared norms that are known already.
    """

    def __init__(
        self,
        contributions: Mapping[str, Contribution],
        *,
        mask_B: Tensor,
        margin: float,
        kept: Callable[[str, Tensor], Tensor] | None = None,
        scale: float = 1.0,
        squared: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._contributions, self._scale = dict(contributions), scale
        self._kept = kept or (lambda _, whole: whole)
        self._squared, self._margin = dict(squared or {}), margin
        shapes = _stored(contributions, is_on_gpu=mask_B.is_cuda)
        with uncast(mask_B.device):
            self._squared |= {n: part.squared_norms() for n, part in contributions.items() if n not in shapes}
            squares = list(self._squared.values())
            if shapes:
                self._joined = torch.cat([rows(contributions[name].materialised()) for name in shapes], dim=1)
                squares.append(sum_of_squares(self._joined))
                for name, part in _parts(self._joined, shapes).items():
                    self._contributions[name] = Materialised(part)
        self._stored = shapes
        self._whole_B = torch.stack(squares).sum(0)
        # A record with a gradient that is not finite, in whatever parameter, counts as zero in all of them.
        self._counted_B = mask_B & (self._whole_B < torch.inf)  # no NaN is

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._contributions)

    @property
    def margin(self) -> float:
        return self._margin

    @property
    def num_records(self) -> int:
        return len(self._counted_B)

    def norms(self, groups: Groups | None = None) -> Tensor:
        squares = [self._whole_B] if groups is None else self._squares_of(check_groups(groups, names=self.names))
        norms = [keep(squared.sqrt() * self._scale, self._counted_B) for squared in squares]
        return norms[0] if groups is None else torch.stack(norms, dim=1)

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        weight_of = weight_of_each(
            weights, groups, names=self.names, num_records=len(self._counted_B), scale=self._scale
        )
        sums: dict[str, Tensor] = {}
        with uncast(self._counted_B.device):
            if self._stored and groups is None:
                whole = weighted_rows_of(self._joined, weight_of[next(iter(self._stored))], self._counted_B).double()
                sums = {name: self._kept(name, part) for name, part in _parts(whole, self._stored).items()}
            for name, part in self._contributions.items():
                if name not in sums:
                    # In the parameter's own memory order, so that noise and update can go through all of it at once.
                    whole = part.weighted_sum(weight_of[name], self._counted_B).double().contiguous()
                    sums[name] = self._kept(name, whole)
        return {name: sums[name] for name in self._contributions}

    def _squares_of(self, groups: Groups) -> list[Tensor]:
        with uncast(self._counted_B.device):
            for name in self._contributions.keys() - self._squared.keys():
                self._squared[name] = self._contributions[name].squared_norms()
        return [torch.stack([self._squared[name] for name in group]).sum(0) for group in groups]


def _stored(contributions: Mapping[str, Contribution], *, is_on_gpu: bool) -> dict[str, Size]:
    """The shapes of small gradients, which are stored one after another in memory, so that they take few operations.

    On a CPU these are biases and gains. On a GPU it takes longer to start a small operation than to compute it, so more
    is stored. Compiled, small gradients take few operations anyway.
    """
    if torch.compiler.is_compiling():
        return {}
    kinds = (Materialised, Outer, Convolved, Lookup) if is_on_gpu else (Materialised,)
    numbers = {name: prod(part.shape) for name, part in contributions.items() if isinstance(part, kinds)}
    found: dict[str, Size] = {}
    room = JOINED_BYTES
    for name in sorted(numbers, key=numbers.__getitem__):
        part: Any = contributions[name]
        taken = 4 * part.records * numbers[name]
        if taken <= min(room, KEPT_BYTES) if is_on_gpu else numbers[name] <= SMALL:
            found[name], room = Size(part.shape), room - taken
    # In the parameters' own order, in which their noise is one stream.
    return {name: found[name] for name in numbers if name in found} if len(found) > 1 else {}


def _parts(joined: Tensor, shapes: Mapping[str, Size]) -> dict[str, Tensor]:
    """The gradients of each parameter, or their sums, from where they are stored one after another."""
    parts = torch.split(joined, [shape.numel() for shape in shapes.values()], dim=-1)
    each = zip(shapes.items(), parts, strict=True)
    return {name: part.view((*joined.shape[:-1], *shape)) for (name, shape), part in each}
