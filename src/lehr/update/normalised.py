"""Steps of a given length: the direction of a gradient without its size.

AGD (Lee & Kifer 2018) looks for the length by itself. The norm is taken over all parameters together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import optim


class NormalisedSGD(optim.Optimizer):
    """Moves by ``lr`` along the gradient divided by its norm. A gradient of zero moves nothing."""

    def __init__(self, params: Any, lr: float, foreach: bool = True) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            grads = [parameter.grad for parameter in moved]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            if norm > 0:
                torch._foreach_add_(moved, torch._foreach_div(grads, norm), alpha=-group["lr"])
