"""A parameter that is used more than once: its gradients add up, so the products between the uses count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from lehr.gradients.contributions.lookup import Lookup
from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.outer import Outer
from lehr.gradients.products import batched_product, sum_of_squares
from lehr.interfaces import Contribution


def together(uses: Sequence[Contribution]) -> Contribution:
    """All uses of one parameter as one contribution, in the cheapest form that counts the products between them."""
    if len(uses) == 1:
        return uses[0]
    if all(isinstance(use, Outer) for use in uses):
        outers = [use for use in uses if isinstance(use, Outer)]
        return Outer(
            torch.cat([use.output_grads_BTO for use in outers], dim=1), torch.cat([use.inputs_BTI for use in outers], dim=1)
        )
    if all(isinstance(use, Materialised) for use in uses):
        return Materialised(sum_of(uses))
    return Shared(tuple(uses))


@dataclass(frozen=True)
class Shared:
    """Uses of different kinds, such as a table of tokens that is also the last layer."""

    uses: tuple[Contribution, ...]

    def squared_norms(self) -> Tensor:
        if not all(isinstance(use, Outer | Lookup) for use in self.uses):
            return sum_of_squares(self.materialised())
        own = torch.stack([use.squared_norms() for use in self.uses]).sum(0)
        between = [_inner(one, other) for one, other in combinations(self.uses, 2)]
        return (own + 2 * torch.stack(between).sum(0)).clamp_min(0)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        return torch.stack([use.weighted_sum(weights_B, counted_B) for use in self.uses]).sum(0)

    def materialised(self) -> Tensor:
        return sum_of(self.uses)


def sum_of(uses: Sequence[Contribution]) -> Tensor:
    """Every record's gradient, all uses added up."""
    return torch.stack([use.materialised() for use in uses]).sum(0)


def _inner(one: Contribution, other: Contribution) -> Tensor:
    """The inner product of two uses, per record, without forming either."""
    if isinstance(one, Outer) and isinstance(other, Outer):
        return (one.left_gram(other) * one.right_gram(other)).sum((1, 2))
    if isinstance(one, Lookup) and isinstance(other, Lookup):
        same = one.rows_BT.unsqueeze(2) == other.rows_BT.unsqueeze(1)
        return batched_product(one.output_grads_BTD, other.output_grads_BTD.transpose(1, 2)).where(same, 0).sum((1, 2))
    lookup, outer = (one, other) if isinstance(one, Lookup) else (other, one)
    assert isinstance(lookup, Lookup)
    assert isinstance(outer, Outer)
    rows = lookup.rows_BT.unsqueeze(1).expand(-1, outer.output_grads_BTO.shape[1], -1)
    met = outer.output_grads_BTO.gather(2, rows)  # the output gradient of each looked-up row, at each position
    products = batched_product(outer.inputs_BTI, lookup.output_grads_BTD.transpose(1, 2))
    return (met.to(products.dtype) * products).sum((1, 2))
