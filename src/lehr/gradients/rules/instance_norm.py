"""InstanceNorm in one, two and three dimensions, with statistics of each image's own or fixed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.gradients.rules.normalisation import affine, affine_grads, all_but_channels, per_channel, standardised
from lehr.interfaces import Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule

_InstanceNorm: TypeAlias = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


def _forward(layer: _InstanceNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
    axes = layer._get_no_batch_dim() + 1
    if input.dim() != axes:
        allowed = f"a tensor of {axes} axes: records, channels, space"
        raise InvalidValue(f"the input of {type(layer).__name__}", allowed=allowed, given=tuple(input.shape))
    normalised = _fixed(layer, input) if _has_fixed_statistics(layer) else _own(layer, input)
    gain, shift = per_channel(layer.weight, input), per_channel(layer.bias, input)
    return affine(tap, normalised, gain=gain, shift=shift, dtype=input.dtype)


def _own(layer: _InstanceNorm, values: Tensor) -> Tensor:
    return standardised(values, range(2, values.dim()), eps=layer.eps)


def _fixed(layer: _InstanceNorm, values: Tensor) -> Tensor:
    dtype = at_least_float32(values.dtype)
    mean, variance = per_channel(layer.running_mean, values), per_channel(layer.running_var, values)
    assert mean is not None
    assert variance is not None
    return (values.to(dtype) - mean.to(dtype)) * torch.rsqrt(variance.to(dtype) + layer.eps)


def _has_fixed_statistics(layer: _InstanceNorm) -> bool:
    return layer.running_mean is not None and not layer.training


def _contributions(layer: _InstanceNorm, sites: Mapping[str, Site]) -> Contributions:
    return affine_grads(sites["output"], all_but_channels(sites["output"]))


def _refuses(layer: _InstanceNorm) -> str | None:
    if layer.training and layer.running_mean is not None:
        return (
            "it keeps a running mean of the private records in its buffers, without noise; "
            "build it with track_running_stats=False, or call eval() on it to use the statistics that it has"
        )
    return None


for kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
    register_layer_rule(kind, LayerRule(contributions=_contributions, forward=_forward, refuses=_refuses))
