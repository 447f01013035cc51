"""LayerNorm, with its statistics in float32.

What the tap is handed is the normalised input, which no gradient has to flow through: torch's own layer computes the
output, in one pass forward and one back, and the same again without gain and shift, unlistened, gives the input of
the tap. An input that does not lie in memory in order is normalised in steps that keep its order.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.gradients.rules.normalisation import affine, affine_grads, standardised
from lehr.interfaces import Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule


def _forward(layer: nn.LayerNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
    shape = layer.normalized_shape
    if not input.numel() or not input.is_contiguous():
        normalised = standardised(input, range(-len(shape), 0), eps=layer.eps)
        return affine(tap, normalised, gain=layer.weight, shift=layer.bias, dtype=input.dtype)
    exact = input.to(at_least_float32(input.dtype))
    gain, shift = _like(layer.weight, exact), _like(layer.bias, exact)
    output = functional.layer_norm(exact, shape, gain, shift, layer.eps).to(input.dtype)
    if gain is None and shift is None:
        return output
    with torch.no_grad():
        normalised = functional.layer_norm(exact, shape, eps=layer.eps)
    return tap("output", normalised, output)


def _like(parameter: Tensor | None, exact: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.to(exact.dtype)


def _contributions(layer: nn.LayerNorm, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    return affine_grads(site, range(1, site.inputs.dim() - len(layer.normalized_shape)))


register_layer_rule(nn.LayerNorm, LayerRule(contributions=_contributions, forward=_forward))
