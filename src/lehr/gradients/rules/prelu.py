"""PReLU: a learned slope below zero, one for all channels or one for each."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from lehr.gradients.rules.normalisation import all_but_channels
from lehr.interfaces import Contributions, LayerRule, Site, at_least_float32, register_layer_rule


def _contributions(layer: nn.PReLU, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    exact = at_least_float32(site.inputs.dtype)
    products = site.output_grads.to(exact) * site.inputs.to(exact).clamp_max(0)
    if layer.num_parameters > 1:
        return {"weight": products.sum(all_but_channels(site))}
    return {"weight": products.sum(tuple(range(1, products.dim()))).unsqueeze(1)}


register_layer_rule(nn.PReLU, LayerRule(contributions=_contributions))
