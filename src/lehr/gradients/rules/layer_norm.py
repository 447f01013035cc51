"""LayerNorm, written so that it keeps the memory format of its input and its statistics in float32."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lehr.gradients.rules.normalisation import affine, affine_grads, standardised
from lehr.interfaces import Contributions, LayerRule, Site, Tap, register_layer_rule


def _forward(layer: nn.LayerNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
    normalised = standardised(input, range(-len(layer.normalized_shape), 0), eps=layer.eps)
    return affine(tap, normalised, gain=layer.weight, shift=layer.bias, dtype=input.dtype)


def _contributions(layer: nn.LayerNorm, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    return affine_grads(site, range(1, site.inputs.dim() - len(layer.normalized_shape)))


register_layer_rule(nn.LayerNorm, LayerRule(contributions=_contributions, forward=_forward))
