"""A weight that is computed from parameters, such as a standardised one: gradients go on through that computation.

The computation is the same for every record and its derivative is linear, so the weighted sum goes through once; for
the norms the gradients of a few records at a time are formed and sent through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.gradients.contributions.chunks import squared_norms_by_forming
from lehr.interfaces import Contribution


@dataclass(frozen=True)
class Through:
    """``pullback`` takes the gradient of the computed weight to the gradient of one parameter behind it."""

    computed: Contribution
    pullback: Callable[[Tensor], Tensor]

    def squared_norms(self) -> Tensor:
        return squared_norms_by_forming([self.computed], lambda uses: self._sent_through(uses[0]))

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        return self.pullback(self.computed.weighted_sum(weights_B, counted_B))

    def materialised(self) -> Tensor:
        return self._sent_through(self.computed)

    def _sent_through(self, computed: Contribution) -> Tensor:
        grads = computed.materialised()
        if not grads.shape[0]:  # vmap has no empty maps
            one = self.pullback(grads.new_zeros(grads.shape[1:]))
            return one.new_zeros(0, *one.shape)
        return torch.func.vmap(self.pullback)(grads)
