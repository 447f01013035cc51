"""Weight standardisation: a layer's weight is computed from a parameter, with mean zero and a fixed variance.

After Qiao et al. (2019), scaled as in Brock, De and Smith (2021): a weight of variance 1 / fan-in keeps the variance of
what passes. De et al. (2022) standardise the convolutions of their wide residual networks. It depends on the weights
alone, never on the records, so it mixes none of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize


class Standardised(nn.Module):
    """Computes a weight: every output channel has mean zero and variance gain² / fan-in."""

    def __init__(self, num_channels: int, *, floor: float = 1e-4) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(num_channels, 1, 1, 1))
        self._floor = floor

    def forward(self, weight: Tensor) -> Tensor:
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, correction=0)
        fan_in = weight[0].numel()
        return (weight - mean) * torch.rsqrt((variance * fan_in).clamp_min(self._floor)) * self.gain


def standardise(network: nn.Module) -> None:
    """Every convolution of the network with a standardised weight, scaled by a trained gain for each channel.

    Weights that were drawn before stay as the parameters that the new ones are computed from.
    """
    for layer in list(network.modules()):
        if isinstance(layer, nn.Conv2d):
            parametrize.register_parametrization(layer, "weight", Standardised(layer.out_channels))


def standardised_convolution(in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution whose weight is standardised, scaled by a trained gain for each channel, and has a bias."""
    layer = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2)
    nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    standardise(layer)
    return layer
