"""A normalisation with statistics that never change: what is left of BatchNorm once it no longer looks at the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedStatistics(nn.Module):
    """``(input - mean) / std * weight + bias`` per channel, the same in training and in evaluation.

    ``mean`` and ``std`` are buffers; ``weight`` and ``bias`` are parameters, or nothing.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor, *, weight: Tensor | None = None, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("std", std.detach().clone())
        self.weight = None if weight is None else nn.Parameter(weight.detach().clone(), weight.requires_grad)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), bias.requires_grad)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
        outputs = (input - _across(self.mean, input)) / _across(self.std, input)
        outputs = outputs if self.weight is None else outputs * _across(self.weight, input)
        return outputs if self.bias is None else outputs + _across(self.bias, input)

    def extra_repr(self) -> str:
        return f"{self.mean.numel()}, affine={self.weight is not None}"


def _across(per_channel: Tensor, values: Tensor) -> Tensor:
    shape = (-1, *(1 for _ in values.shape[2:]))
    return torch.reshape(per_channel, shape)
