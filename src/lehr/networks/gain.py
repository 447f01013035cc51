"""A number that scales what passes, and is trained: SkipInit of De and Smith (2020).

Axes: B records, K views of one record.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lehr.interfaces import Contributions, LayerRule, Site, at_least_float32, register_layer_rule


class Gain(nn.Module):
    """Multiplies by one trained number. It begins at zero, where a residual branch is not there yet."""

    def __init__(self, initial: float = 0.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(initial)))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


def _contributions(layer: Gain, sites: Mapping[str, Site]) -> Contributions:
    """The derivative by the factor is what came in, so a record's gradient is an inner product."""
    site = sites["output"]
    wide = at_least_float32(site.inputs.dtype)
    products = site.inputs.to(wide) * site.output_grads.to(wide)
    return {"factor": products.sum(tuple(range(1, products.dim())))}


register_layer_rule(Gain, LayerRule(contributions=_contributions))
