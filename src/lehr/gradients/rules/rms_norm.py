"""RMSNorm, written so that it keeps the memory format of its input and its mean square in float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lehr.gradients.rules.normalisation import affine, affine_grads
from lehr.interfaces import Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule


def _forward(layer: nn.RMSNorm, tap: Tap, x: Tensor) -> Tensor:
    exact = x.to(at_least_float32(x.dtype))
    axes = tuple(range(-len(layer.normalized_shape), 0))
    eps = torch.finfo(exact.dtype).eps if layer.eps is None else layer.eps
    normalised = exact * torch.rsqrt(exact.square().mean(axes, keepdim=True) + eps)
    return affine(tap, normalised, gain=layer.weight, shift=None, dtype=x.dtype)


def _contributions(layer: nn.RMSNorm, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    return {"weight": affine_grads(site, range(1, site.inputs.dim() - len(layer.normalized_shape)))["weight"]}


register_layer_rule(nn.RMSNorm, LayerRule(contributions=_contributions, forward=_forward))
