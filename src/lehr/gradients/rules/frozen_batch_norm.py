"""BatchNorm in evaluation mode, or converted: its statistics are fixed, so gain and shift can be private."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lehr.gradients.fixed_statistics import FixedStatistics
from lehr.gradients.rules.normalisation import affine, affine_grads, all_but_channels, per_channel
from lehr.interfaces import Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule

_BatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def _batch_norm(layer: _BatchNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
    assert layer.running_mean is not None  # otherwise it uses the batch, which is refused
    assert layer.running_var is not None
    variance = layer.running_var.to(at_least_float32(input.dtype))
    return _normalised(layer, tap, input, mean=layer.running_mean, inverse_std=torch.rsqrt(variance + layer.eps))


def _fixed(layer: FixedStatistics, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    return _normalised(layer, tap, input, mean=layer.mean, inverse_std=layer.std.reciprocal())


def _normalised(
    layer: _BatchNorm | FixedStatistics, tap: Tap, values: Tensor, *, mean: Tensor, inverse_std: Tensor
) -> Tensor:
    exact = values.to(at_least_float32(values.dtype))
    normalised = (exact - _across(mean, values)) * _across(inverse_std, values)
    gain, shift = per_channel(layer.weight, values), per_channel(layer.bias, values)
    return affine(tap, normalised, gain=gain, shift=shift, dtype=values.dtype)


def _across(statistics: Tensor, values: Tensor) -> Tensor:
    return statistics.reshape(-1, *(1 for _ in values.shape[2:]))


def _contributions(layer: _BatchNorm | FixedStatistics, sites: Mapping[str, Site]) -> Contributions:
    return affine_grads(sites["output"], all_but_channels(sites["output"]))


for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
    register_layer_rule(kind, LayerRule(contributions=_contributions, forward=_batch_norm))
register_layer_rule(FixedStatistics, LayerRule(contributions=_contributions, forward=_fixed))
