"""A convolution whose weight is computed from parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class Standardised(nn.Module):
    """A weight with mean zero and variance one for each output, and a learned gain."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, outputs))

    def forward(self, weight: Tensor) -> Tensor:
        rows = weight.flatten(1)
        variance, mean = torch.var_mean(rows, dim=1, keepdim=True, correction=0)
        return ((rows - mean) * torch.rsqrt(variance + 1e-4) * self.gain.unsqueeze(1)).reshape(weight.shape)


def standardised_convolution(channels: int, outputs: int) -> nn.Module:
    """Three by three, padded."""
    layer = nn.Conv2d(channels, outputs, 3, padding=1)
    return parametrize.register_parametrization(layer, "weight", Standardised(outputs))
