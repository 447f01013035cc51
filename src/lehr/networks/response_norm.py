"""Local response normalisation, after Krizhevsky et al. (2012): channels that stand side by side inhibit one another.

It computes what ``nn.LocalResponseNorm`` computes, which runs through a pool over three dimensions. On a CPU that pool
knows no bfloat16, and on a GPU its backward pass adds in any order, so that a run could not be repeated to the bit.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lehr import validate


class ResponseNorm(nn.Module):
    """x / (1 + strength · Σ x²)^exponent: the sum is over ``reach`` channels on either side, at one pixel of a record.

    The second axis of what comes in are the channels. Nothing is trained, and no record sees another.
    """

    def __init__(self, *, reach: int, strength: float, exponent: float) -> None:
        super().__init__()
        self.reach = validate.count(minimum=0, reach=reach)
        self.strength = validate.positive(strength=strength)
        self.exponent = validate.positive(exponent=exponent)

    def forward(self, values: Tensor) -> Tensor:
        beyond = [0, 0] * (values.dim() - 2) + [self.reach, self.reach]
        squares = pad(values.square(), beyond)
        num_channels = values.shape[1]
        windows = [squares.narrow(1, first, num_channels) for first in range(2 * self.reach + 1)]
        total = functools.reduce(torch.add, windows)
        return values * (1 + self.strength * total).pow(-self.exponent)

    def extra_repr(self) -> str:
        return f"reach={self.reach}, strength={self.strength:g}, exponent={self.exponent:g}"
