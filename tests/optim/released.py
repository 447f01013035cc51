"""A small model, and released sums for it that a seed decides."""

from __future__ import annotations

import torch
from torch import nn

from lehr.interfaces import ReleasedSum


def small_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with matrices, vectors and a filter, always with the same weights."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3), nn.LayerNorm(3)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def released(model: nn.Module, seed: int, dtype: torch.dtype = torch.float32) -> ReleasedSum:
    """A sum for the trainable parameters of the model."""
    generator = torch.Generator().manual_seed(seed)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return ReleasedSum(
        values={name: torch.randn(p.shape, generator=generator).to(p.device, dtype) for name, p in trainable.items()}
    )


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the weights."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of tensors are the same, bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
