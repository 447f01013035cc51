"""A table whose rows are looked up: each record's gradient has a row only where the record looked, and is never dense.

Axes: B records, T positions, D columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.gradients.products import squares_at_most, sum_of_squares, weigh
from lehr.interfaces import at_least_float32


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
        lengths_B = squares_at_most(self._exact(), [2]).sqrt().sum(1)  # noqa: N806
        # What is summed is formed a second time, and on a GPU in another order.
        rounding_B = (2 * torch.finfo(lengths_B.dtype).eps * lengths_B).square()  # noqa: N806
        return sum_of_squares(self._row_by_row()[1]) + rounding_B

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        rows_BT, grads = self._row_by_row()  # noqa: N806
        scaled = weigh(grads, weights_B, counted_B).flatten(0, 1).double()
        return scaled.new_zeros(self.shape).index_add(0, rows_BT.flatten(), scaled)

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
        ordered_BT, order_BT = self.rows_BT.sort(dim=1)  # noqa: N806
        ordered_slots_BT = (ordered_BT.diff(dim=1, prepend=ordered_BT[:, :1]) != 0).cumsum(1)  # noqa: N806
        slots_BT = torch.zeros_like(order_BT).scatter(1, order_BT, ordered_slots_BT)  # noqa: N806
        grads = self._exact()
        summed = torch.zeros_like(grads).scatter_add(1, slots_BT.unsqueeze(2).expand_as(grads), grads)
        return torch.zeros_like(ordered_BT).scatter(1, ordered_slots_BT, ordered_BT), summed

    def _exact(self) -> Tensor:
        return self.output_grads_BTD.to(at_least_float32(self.output_grads_BTD.dtype))
