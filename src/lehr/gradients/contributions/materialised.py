"""Gradients that are small enough to be stored record by record: biases, gains, the weights of normalisations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.gradients.products import keep, rows, sum_of_squares, weigh, weighted_rows
from lehr.interfaces import at_least_float32


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

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        exact = self.grads.to(at_least_float32(self.grads.dtype))
        if exact.device.type == "cpu" and not torch.compiler.is_compiling():
            weights = keep(weights_B, counted_B).to(exact.dtype)
            return weighted_rows(weights, rows(keep(exact, counted_B))).reshape(self.shape)
        # Compiled, this is one pass over the gradients; and on a GPU a product of matrices may be rounded to TF32.
        return weigh(exact, weights_B, counted_B).sum(0, dtype=torch.float64)

    def materialised(self) -> Tensor:
        return self.grads

    def taken(self, first: int, last: int) -> Materialised:
        return Materialised(self.grads[first:last])
