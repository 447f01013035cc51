"""A table whose rows are looked up: each record's gradient has a row only where the record looked, and is never dense.

Axes: B records, T positions, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lehr.gradients.products import batched_product, weigh
from lehr.interfaces import at_least_float32


@dataclass(frozen=True)
class Lookup:
    """``output_grads[b, t]`` added to row ``rows[b, t]``."""

    rows_BT: Tensor  # noqa: N815
    output_grads_BTD: Tensor  # noqa: N815
    num_rows: int

    def squared_norms(self) -> Tensor:
        same_BTT = self.rows_BT.unsqueeze(2) == self.rows_BT.unsqueeze(1)  # noqa: N806
        products_BTT = batched_product(self.output_grads_BTD, self.output_grads_BTD.transpose(1, 2))  # noqa: N806
        return products_BTT.where(same_BTT, 0).sum((1, 2)).clamp_min(0)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        scaled = weigh(self.output_grads_BTD, weights_B, counted_B).flatten(0, 1)
        accumulated = scaled.to(at_least_float32(scaled.dtype))
        return accumulated.new_zeros(self.num_rows, scaled.shape[1]).index_add(0, self.rows_BT.flatten(), accumulated)

    def materialised(self) -> Tensor:
        grads = self.output_grads_BTD
        dense = grads.new_zeros(grads.shape[0], self.num_rows, grads.shape[2])
        return dense.scatter_add(1, self.rows_BT.unsqueeze(2).expand_as(grads), grads)
