"""A weight that is computed from parameters, such as a standardised one: gradients go on through that computation.

The computation is the same for every record and its derivative is linear, so the weighted sum goes through once; for the
norms the gradients of a few records at a time are formed and sent through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.gradients.products import sum_of_squares
from lehr.interfaces import Contribution


@dataclass(frozen=True)
class Through:
    """``pullback`` takes the gradient of the computed weight to the gradient of one parameter behind it."""

    computed: Contribution
    pullback: Callable[[Tensor], Tensor]

    def squared_norms(self) -> Tensor:
        return sum_of_squares(self.materialised())

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        return self.pullback(self.computed.weighted_sum(weights_B, counted_B))

    def materialised(self) -> Tensor:
        return torch.func.vmap(self.pullback)(self.computed.materialised())
