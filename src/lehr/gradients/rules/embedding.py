"""Tables of embeddings. A record's gradient has rows only where the record looked, and is never dense."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from lehr.gradients.contributions.lookup import Lookup
from lehr.interfaces import Contributions, LayerRule, Site, register_layer_rule


def looked_up(layer: nn.Embedding | nn.EmbeddingBag, site: Site) -> Lookup:
    """The table's part: every axis behind the record is a position. The padding row is never trained."""
    rows, grads = site.inputs, site.output_grads
    if layer.padding_idx is not None:
        grads = grads.masked_fill((rows == layer.padding_idx).unsqueeze(-1), 0)
    records, positions = rows.shape[0], rows.shape[1:].numel()
    return Lookup(
        rows.reshape(records, positions), grads.reshape(records, positions, layer.embedding_dim), layer.num_embeddings
    )


def refuses_table(layer: nn.Embedding | nn.EmbeddingBag) -> str | None:
    """Why a table cannot be private as it is set up."""
    if layer.max_norm is not None:
        return (
            "with max_norm it rescales the rows that private records look up, without noise; "
            "build it with max_norm=None, and bound the rows after the update if they have to be"
        )
    if layer.scale_grad_by_freq and _is_trained(layer.weight):
        return (
            "with scale_grad_by_freq one record's gradient depends on how often others use a word; "
            "build it with scale_grad_by_freq=False"
        )
    return None


def _is_trained(weight: Tensor) -> bool:
    return weight.requires_grad


def _contributions(layer: nn.Embedding, sites: Mapping[str, Site]) -> Contributions:
    return {"weight": looked_up(layer, sites["output"])}


register_layer_rule(nn.Embedding, LayerRule(contributions=_contributions, refuses=refuses_table))
