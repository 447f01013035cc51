"""Convolutions in one, two and three dimensions: groups, stride, dilation and every padding mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn import functional

from lehr.gradients.contributions.convolution import Convolved
from lehr.gradients.kernels.geometry import Geometry
from lehr.interfaces import Contributions, LayerRule, Site, at_least_float32, register_layer_rule

_Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d


def bias_grads(site: Site) -> Tensor:
    """The bias's part: the output gradients added up over views and space, in float32 or better."""
    grads = site.output_grads
    return grads.sum((1, *range(3, grads.dim())), dtype=at_least_float32(grads.dtype))


def _contributions(layer: _Convolution, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    records = site.inputs.shape[0]
    inputs, output_grads = site.inputs.flatten(0, 1), site.output_grads.flatten(0, 1)
    around = _around(layer)
    if layer.padding_mode == "zeros" and around[::2] == around[1::2]:
        padding = tuple(around[::-2])
    else:  # not zeros, or not the same on both sides: pad first, then convolve without padding
        inputs = functional.pad(inputs, around, mode=layer.padding_mode.replace("zeros", "constant"))
        padding = (0,) * len(layer.kernel_size)
    geometry = Geometry(layer.kernel_size, layer.stride, padding, layer.dilation, layer.groups)
    return {"weight": Convolved(inputs, output_grads, geometry, records), "bias": bias_grads(site)}


def _around(layer: _Convolution) -> list[int]:
    """What is added around the input, as ``functional.pad`` wants it: last axis first, before and after."""
    if not isinstance(layer.padding, str):
        return [amount for amount in reversed(layer.padding) for _ in range(2)]
    if layer.padding == "valid":
        return [0, 0] * len(layer.kernel_size)
    reach = [d * (k - 1) for d, k in zip(reversed(layer.dilation), reversed(layer.kernel_size), strict=True)]
    return [amount for total in reach for amount in (total // 2, total - total // 2)]


for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register_layer_rule(kind, LayerRule(contributions=_contributions))
