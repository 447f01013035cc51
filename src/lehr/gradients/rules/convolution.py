"""Convolutions in one, two and three dimensions: groups, stride, dilation and every padding mode."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn import functional

from lehr.gradients.contributions.convolution import Convolved
from lehr.gradients.kernels.geometry import Geometry
from lehr.interfaces import Contributions, LayerRule, Site, register_layer_rule


def _contributions(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    records = site.inputs.shape[0]
    inputs = site.inputs.flatten(0, 1)
    output_grads = site.output_grads.flatten(0, 1)
    around = _around(layer)
    padding = around[::-2] if layer.padding_mode == "zeros" and around[::2] == around[1::2] else None
    if padding is None:  # not zeros, or not the same on both sides: pad first, then convolve without padding
        inputs = functional.pad(inputs, around, mode="constant" if layer.padding_mode == "zeros" else layer.padding_mode)
        padding = [0] * len(layer.kernel_size)
    geometry = Geometry(layer.kernel_size, layer.stride, tuple(padding), layer.dilation, layer.groups)
    return {
        "weight": Convolved(inputs, output_grads, geometry, records),
        "bias": site.output_grads.flatten(3).sum((1, 3)),
    }


def _around(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """What is added around the input, as ``functional.pad`` wants it: last axis first, before and after."""
    if not isinstance(layer.padding, str):
        return [amount for amount in reversed(layer.padding) for _ in range(2)]
    if layer.padding == "valid":
        return [0, 0] * len(layer.kernel_size)
    reach = [d * (k - 1) for d, k in zip(reversed(layer.dilation), reversed(layer.kernel_size), strict=True)]
    return [amount for total in reach for amount in (total // 2, total - total // 2)]


for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register_layer_rule(kind, LayerRule(contributions=_contributions))
