"""Transposed convolutions: a convolution in which input and output gradient have changed places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from torch import Tensor, nn
from torch.nn import functional

from lehr.gradients.contributions.convolution import Convolved
from lehr.gradients.kernels.geometry import Geometry
from lehr.gradients.rules.convolution import bias_grads
from lehr.interfaces import Contributions, LayerRule, Site, register_layer_rule

_Transposed: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def _contributions(layer: _Transposed, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    assert not isinstance(layer.padding, str)
    inputs, output_grads = site.inputs.flatten(0, 1), site.output_grads.flatten(0, 1)
    padding = tuple(layer.padding)
    excess = _excess(layer, inputs, output_grads)
    if any(more >= stride for more, stride in zip(excess, layer.stride, strict=True)):
        # A convolution would take one step more than there are inputs: pad first, then cut what no input reaches.
        around = [amount for p, more in zip(padding[::-1], excess[::-1], strict=True) for amount in (p, p - more)]
        output_grads, padding = functional.pad(output_grads, around), (0,) * len(padding)
    geometry = Geometry(layer.kernel_size, layer.stride, padding, layer.dilation, layer.groups)
    weight = Convolved(output_grads, inputs, geometry, site.inputs.shape[0])
    return {"weight": weight, "bias": bias_grads(site)}


def _excess(layer: _Transposed, inputs: Tensor, output_grads: Tensor) -> list[int]:
    """How much longer each axis of the output is than the filter reaches: what ``output_padding`` adds."""
    return [
        after + 2 * padding - (before - 1) * stride - dilation * (kernel - 1) - 1
        for before, after, kernel, stride, padding, dilation in zip(
            inputs.shape[2:],
            output_grads.shape[2:],
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            strict=True,
        )
    ]


for kind in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
    register_layer_rule(kind, LayerRule(contributions=_contributions))
