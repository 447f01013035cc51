"""A weight that meets its input as a matrix: each record's gradient is a sum of outer products over positions.

The norm is had from the products of positions among themselves (Goodfellow 2015; Li et al. 2022, "Large Language Models
Can Be Strong Differentially Private Learners") or by forming the gradient, whichever takes fewer multiplications.

Axes: B records, T positions (views and sequence together), O outputs, I inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lehr.gradients.products import batched_product, keep, product, sum_of_squares, weigh


@dataclass(frozen=True)
class Outer:
    """``sum over t of output_grads[b, t] ⊗ inputs[b, t]``."""

    output_grads_BTO: Tensor  # noqa: N815
    inputs_BTI: Tensor  # noqa: N815

    def squared_norms(self) -> Tensor:
        _, positions, outputs = self.output_grads_BTO.shape
        inputs = self.inputs_BTI.shape[2]
        if positions == 1:
            return sum_of_squares(self.output_grads_BTO) * sum_of_squares(self.inputs_BTI)
        if positions * (outputs + inputs) < outputs * inputs:
            # The sum of products can come out a rounding error below zero where the terms cancel.
            return (self.left_gram(self) * self.right_gram(self)).sum((1, 2)).clamp_min(0)
        return sum_of_squares(self.materialised())

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        scaled = weigh(self.output_grads_BTO, weights_B, counted_B).flatten(0, 1)
        return product(scaled.T, keep(self.inputs_BTI, counted_B).flatten(0, 1))

    def materialised(self) -> Tensor:
        return batched_product(self.output_grads_BTO.transpose(1, 2), self.inputs_BTI)

    def left_gram(self, other: Outer) -> Tensor:
        """The products of this one's output gradients with another's, position by position."""
        return batched_product(self.output_grads_BTO, other.output_grads_BTO.transpose(1, 2))

    def right_gram(self, other: Outer) -> Tensor:
        """The products of this one's inputs with another's, position by position."""
        return batched_product(self.inputs_BTI, other.inputs_BTI.transpose(1, 2))
