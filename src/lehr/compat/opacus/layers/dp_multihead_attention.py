"""Attention: torch's own layer, which Lehr's engines know, under Opacus's name; and a bias behind a sequence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lehr.interfaces import Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule


class DPMultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` itself, with all its options and its ``state_dict``."""


class SequenceBias(nn.Module):
    """Appends a learned element to the end of every sequence.

    >>> SequenceBias(16)(torch.zeros(20, 4, 16)).shape
    torch.Size([21, 4, 16])
    """

    def __init__(self, embed_dim: int, batch_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.bias = nn.Parameter(torch.empty(embed_dim))
        nn.init.normal_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return _appended(self, x, _one_each(self, x))


def _one_each(layer: SequenceBias, x: Tensor) -> Tensor:
    records = x.shape[0 if layer.batch_first else 1]
    return layer.bias.expand(records, 1, -1)


def _appended(layer: SequenceBias, x: Tensor, more: Tensor) -> Tensor:
    return torch.cat([x, more], dim=1) if layer.batch_first else torch.cat([x, more.transpose(0, 1)])


def _forward(layer: SequenceBias, tap: Tap, x: Tensor) -> Tensor:
    more = _one_each(layer, x).clone()
    return _appended(layer, x, tap("bias", more, more))


def _contributions(layer: SequenceBias, sites: Mapping[str, Site]) -> Contributions:
    grads = sites["bias"].output_grads
    return {"bias": grads.flatten(1, -2).sum(1, dtype=at_least_float32(grads.dtype))}


register_layer_rule(SequenceBias, LayerRule(contributions=_contributions, forward=_forward))
