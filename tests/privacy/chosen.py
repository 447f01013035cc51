"""Real engines whose per-record gradients are chosen: the loss is a sum of inner products of weights and inputs.

Axes: B records, P coordinates.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from lehr.gradients.ghost import GhostEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import CoordinateGradients, RecordGradients

SIZES = (3, 2)


class Inner(nn.Module):
    """Two layers of one weight vector each; the gradient of the output is the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIZES[0], 1, bias=False)
        self.second = nn.Linear(SIZES[1], 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        first, second = inputs[..., : SIZES[0]], inputs[..., SIZES[0] :]
        return torch.cat([self.first(first), self.second(second)], dim=-1)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum(-1)


@cache
def ghost_engine(dtype: torch.dtype, precision: str) -> GhostEngine:
    """One for all batches: its gradients do not depend on the weights."""
    return GhostEngine(Inner().to(dtype), losses, precision=precision, compiled=False)


def gradients(grads_BP: Tensor, *, precision: str = "as_model", mask_B: Tensor | None = None) -> RecordGradients:
    """The ghost engine's view of records that have these gradients."""
    engine = ghost_engine(grads_BP.dtype, precision)
    return engine.gradients(grads_BP, torch.zeros(grads_BP.shape[0]), mask_B)


def stored_gradients(grads_BP: Tensor, *, mask_B: Tensor | None = None) -> CoordinateGradients:
    """The same records, with gradients that can be looked at coordinate by coordinate."""
    engine = MaterialisedEngine(Inner().to(grads_BP.dtype), losses)
    return engine.gradients(grads_BP, torch.zeros(grads_BP.shape[0]), mask_B)


def as_vector(values: dict[str, Tensor]) -> Tensor:
    """All parameters as one vector, in float64."""
    return torch.cat([value.double().flatten() for value in values.values()])
