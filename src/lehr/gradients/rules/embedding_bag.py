"""EmbeddingBag over a rectangle of rows: one bag per record, or per view of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import InvalidValue
from lehr.gradients.rules.embedding import looked_up, refuses_table
from lehr.interfaces import Contributions, LayerRule, Site, Tap, register_layer_rule


def _forward(
    layer: nn.EmbeddingBag,
    tap: Tap,
    input: Tensor,  # noqa: A002  (torch's own keyword)
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """As torch does it, but looking up first and adding up afterwards, so that there is a place to listen."""
    if input.dim() != 2 or offsets is not None:
        # With offsets nothing says where one record ends.
        allowed = "two axes, records and positions, and no offsets"
        raise InvalidValue("the input of EmbeddingBag", allowed=allowed, given=tuple(input.shape))
    looked = tap("output", input, functional.embedding(input, layer.weight))
    if per_sample_weights is not None:
        looked = looked * per_sample_weights.unsqueeze(-1)
    return _reduced(layer, looked, _is_real(layer, input))


def _is_real(layer: nn.EmbeddingBag, rows: Tensor) -> Tensor:
    real = torch.ones_like(rows, dtype=torch.bool) if layer.padding_idx is None else rows != layer.padding_idx
    return real.unsqueeze(-1)


def _reduced(layer: nn.EmbeddingBag, looked: Tensor, is_real: Tensor) -> Tensor:
    num_real = is_real.sum(1)
    if layer.mode == "max":
        highest = looked.masked_fill(~is_real, -torch.inf).max(1).values
        return torch.where(num_real > 0, highest, 0)
    total = looked.masked_fill(~is_real, 0).sum(1)
    return total / num_real.clamp_min(1) if layer.mode == "mean" else total


def _contributions(layer: nn.EmbeddingBag, sites: Mapping[str, Site]) -> Contributions:
    return {"weight": looked_up(layer, sites["output"])}


register_layer_rule(nn.EmbeddingBag, LayerRule(contributions=_contributions, forward=_forward, refuses=refuses_table))
