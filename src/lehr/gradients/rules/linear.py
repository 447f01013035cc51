"""Linear layers, also on sequences."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lehr.gradients.contributions.outer import outer
from lehr.interfaces import Contribution, Contributions, LayerRule, Site, at_least_float32, register_layer_rule


def outer_product(site: Site) -> Contribution:
    """The weight's part: every axis between the record and the features is a position."""
    return outer(_positions(site.output_grads), _positions(site.inputs))


def bias_grads(site: Site) -> Tensor:
    """The bias's part: the output gradients added up over positions, in float32 or better."""
    grads = site.output_grads
    return _positions(grads).sum(1, dtype=at_least_float32(grads.dtype))


def _positions(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], values.shape[1:-1].numel(), values.shape[-1])


def _contributions(layer: nn.Linear, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    return {"weight": outer_product(site), "bias": bias_grads(site)}


register_layer_rule(nn.Linear, LayerRule(contributions=_contributions))
