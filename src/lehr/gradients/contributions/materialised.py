"""Gradients that are small enough to be stored record by record: biases, gains, the weights of normalisations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lehr.gradients.products import keep, rows, sum_of_squares
from lehr.interfaces import at_least_float32


@dataclass(frozen=True)
class Materialised:
    """The gradients themselves, ``grads_B...``."""

    grads: Tensor

    def squared_norms(self) -> Tensor:
        return sum_of_squares(self.grads)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        kept = rows(keep(self.grads, counted_B))
        accumulated = kept.to(at_least_float32(kept.dtype))
        return (weights_B.to(accumulated.dtype) @ accumulated).reshape(self.grads.shape[1:])

    def materialised(self) -> Tensor:
        return self.grads
