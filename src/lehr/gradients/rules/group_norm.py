"""GroupNorm, written so that it keeps the memory format of its input and its statistics in float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lehr.interfaces import Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule


def _forward(layer: nn.GroupNorm, tap: Tap, inputs: Tensor) -> Tensor:
    grouped = inputs.unflatten(1, (layer.num_groups, -1))
    exact = grouped.to(at_least_float32(inputs.dtype))
    every = tuple(range(2, exact.dim()))
    variance, mean = torch.var_mean(exact, dim=every, correction=0, keepdim=True)
    normalised = ((exact - mean) * torch.rsqrt(variance + layer.eps)).flatten(1, 2)
    if not layer.affine:
        return normalised.to(inputs.dtype)
    across = (-1, *(1 for _ in inputs.shape[2:]))
    outputs = normalised * layer.weight.reshape(across) + layer.bias.reshape(across)
    return tap("output", normalised, outputs.to(inputs.dtype))


def _contributions(layer: nn.GroupNorm, sites: Mapping[str, Site]) -> Contributions:
    """Both are sums over views and space; axes ``BKC...``."""
    site = sites["output"]
    output_grads = site.output_grads.to(site.inputs.dtype)
    every = (1, *range(3, output_grads.dim()))
    return {"weight": (output_grads * site.inputs).sum(every), "bias": output_grads.sum(every)}


register_layer_rule(nn.GroupNorm, LayerRule(contributions=_contributions, forward=_forward))
