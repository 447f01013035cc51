"""A weight that meets its input as a matrix: each record's gradient is a sum of outer products over positions.

The norm is had from the products of positions among themselves (Goodfellow 2015; Li et al. 2022, "Large Language Models
Can Be Strong Differentially Private Learners") or by forming the gradient, whichever takes fewer multiplications. A
gradient that is formed and small is kept: the sum is then taken of the very numbers that the norm was.

Axes: B records, T positions (views and sequence together), O outputs, I inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.products import (
    HALF,
    batched_product,
    keep,
    product,
    records_at_once,
    rounding_of,
    rounding_of_scaling,
    rounding_of_sum,
    squares_at_most,
    sum_of_squares,
    sum_over_records,
    weigh,
)
from lehr.interfaces import at_least_float32

KEPT_BYTES = 64 * 2**20


def outer(output_grads_BTO: Tensor, inputs_BTI: Tensor) -> Outer | Materialised:  # noqa: N803
    """The contribution in the form that takes less work; public shape alone decides."""
    found = Outer(output_grads_BTO, inputs_BTI)
    is_small = 4 * found.records * prod(found.shape) <= KEPT_BYTES
    return Materialised(found.materialised()) if found.is_formed and is_small else found


@dataclass(frozen=True)
class Outer:
    """``sum over t of output_grads[b, t] ⊗ inputs[b, t]``."""

    output_grads_BTO: Tensor  # noqa: N815
    inputs_BTI: Tensor  # noqa: N815

    @property
    def records(self) -> int:
        return self.inputs_BTI.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.output_grads_BTO.shape[2], self.inputs_BTI.shape[2])

    @property
    def is_formed(self) -> bool:
        """Whether the gradient itself takes fewer multiplications than the products between positions."""
        positions, (outputs, inputs) = self.output_grads_BTO.shape[1], self.shape
        return positions > 1 and positions * (outputs + inputs) >= outputs * inputs

    def squared_norms(self) -> Tensor:
        positions, (outputs, inputs) = self.output_grads_BTO.shape[1], self.shape
        left_BT, right_BT = squares_at_most(self.output_grads_BTO, [2]), squares_at_most(self.inputs_BTI, [2])  # noqa: N806
        if positions == 1:
            return (left_BT * right_BT).sum(1)
        if self.is_formed:
            squared_B = sum_of_squares(self.materialised())  # noqa: N806
        else:
            products_BTT = self.left_gram(self) * self.right_gram(self)  # noqa: N806
            rounding_B = rounding_of(products_BTT.diagonal(dim1=1, dim2=2).sum(1))  # noqa: N806
            tiny = positions * torch.finfo(left_BT.dtype).tiny
            lost_B = (outputs * tiny) * right_BT.sum(1) + (inputs * tiny) * left_BT.sum(1)  # noqa: N806
            squared_B = products_BTT.sum((1, 2)).clamp_min(0) + rounding_B + lost_B  # noqa: N806
        dtype = self.output_grads_BTO.dtype
        lengths_B = (left_BT.sqrt() * right_BT.sqrt()).sum(1)  # noqa: N806
        squared_B = squared_B + rounding_of_sum(lengths_B, dtype, left_BT.device)  # noqa: N806
        if dtype not in HALF:
            return squared_B
        return squared_B + rounding_of_scaling(self.squares_apart(), dtype, positions=positions)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        scaled, kept = weigh(self.output_grads_BTO, weights_B, counted_B), keep(self.inputs_BTI, counted_B)
        positions = scaled.shape[1]

        def sum_of(some: slice) -> Tensor:
            left, right = scaled[some].flatten(0, 1), kept[some].flatten(0, 1)
            if positions > 1 and not left.is_cuda:
                left, right = left.double(), right.double()
            return product(left.T, right)

        at_once = records_at_once(self.inputs_BTI.dtype, positions=positions)
        return sum_over_records(self.records, sum_of, at_once=at_once)

    def materialised(self) -> Tensor:
        return batched_product(self.output_grads_BTO.transpose(1, 2), self.inputs_BTI)

    def taken(self, first: int, last: int) -> Outer:
        return Outer(self.output_grads_BTO[first:last], self.inputs_BTI[first:last])

    def squares_apart(self) -> Tensor:
        """What the squared norm would be if no two positions met."""
        exact = at_least_float32(self.inputs_BTI.dtype)
        left, right = (values.to(exact).square().sum(2) for values in (self.output_grads_BTO, self.inputs_BTI))
        return (left * right).sum(1)

    def left_gram(self, other: Outer) -> Tensor:
        """The products of this one's output gradients with another's, position by position."""
        return batched_product(self.output_grads_BTO, other.output_grads_BTO.transpose(1, 2))

    def right_gram(self, other: Outer) -> Tensor:
        """The products of this one's inputs with another's, position by position."""
        return batched_product(self.inputs_BTI, other.inputs_BTI.transpose(1, 2))
