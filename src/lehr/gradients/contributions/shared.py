"""Uses of one parameter that are of different kinds, such as a table of words that is also the last layer.

The norm of their sum has the products between them: for lookups and outer products without forming any gradient, for
the rest by forming a few records at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import torch
from torch import Tensor

from lehr.gradients.contributions.chunks import squared_norms_by_forming
from lehr.gradients.contributions.lookup import Lookup
from lehr.gradients.contributions.outer import Outer
from lehr.gradients.products import batched_product, rounding_of
from lehr.interfaces import Contribution

_Factored: TypeAlias = Outer | Lookup


@dataclass(frozen=True)
class Shared:
    """The uses; their gradients add up before a norm is taken."""

    uses: tuple[Contribution, ...]

    def squared_norms(self) -> Tensor:
        factored = [use for use in self.uses if isinstance(use, _Factored)]
        if len(factored) < len(self.uses):
            return squared_norms_by_forming(self.uses, sum_of)
        own = torch.stack([use.squared_norms() for use in factored]).sum(0)
        between = torch.stack([_inner(one, other) for one, other in combinations(factored, 2)]).sum(0)
        squares_apart = torch.stack([use.squares_apart() for use in factored]).sum(0)
        return (own + 2 * between).clamp_min(0) + rounding_of(squares_apart)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        return torch.stack([use.weighted_sum(weights_B, counted_B) for use in self.uses]).sum(0)

    def materialised(self) -> Tensor:
        return sum_of(self.uses)


def sum_of(uses: Sequence[Contribution]) -> Tensor:
    """Every record's gradient, all uses added up."""
    return torch.stack([use.materialised() for use in uses]).sum(0)


def _inner(one: _Factored, other: _Factored) -> Tensor:
    """The inner product of two uses, per record, without forming either."""
    if isinstance(one, Outer):
        return _outer_with_outer(one, other) if isinstance(other, Outer) else _lookup_with_outer(other, one)
    return _lookup_with_outer(one, other) if isinstance(other, Outer) else _lookup_with_lookup(one, other)


def _outer_with_outer(one: Outer, other: Outer) -> Tensor:
    return (one.left_gram(other) * one.right_gram(other)).sum((1, 2))


def _lookup_with_lookup(one: Lookup, other: Lookup) -> Tensor:
    same = one.rows_BT.unsqueeze(2) == other.rows_BT.unsqueeze(1)
    return batched_product(one.output_grads_BTD, other.output_grads_BTD.transpose(1, 2)).where(same, 0).sum((1, 2))


def _lookup_with_outer(lookup: Lookup, outer: Outer) -> Tensor:
    rows = lookup.rows_BT.unsqueeze(1).expand(-1, outer.output_grads_BTO.shape[1], -1)
    met = outer.output_grads_BTO.gather(2, rows)  # the output gradient of each looked-up row, at each position
    products = batched_product(outer.inputs_BTI, lookup.output_grads_BTD.transpose(1, 2))
    return (met.to(products.dtype) * products).sum((1, 2))
