"""MultiheadAttention, with every option that torch's own has on batches.

The output layer is a Linear layer of its own and answers for itself; listened to here are the three projections and,
where they exist, the key and value that are appended to every sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import InvalidValue
from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.stacked import Stacked
from lehr.gradients.rules.linear import bias_grads, outer_product
from lehr.interfaces import Contribution, Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule

_APART = ("query", "key", "value")


class Heads(NamedTuple):
    """What each head attends with: records, heads, positions, features; and what is added to the scores."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None


def _forward(
    layer: nn.MultiheadAttention,
    tap: Tap,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    _check(query, attn_mask, is_causal=is_causal)
    causal = is_causal and key_padding_mask is None and not need_weights
    queries, keys, values = _lengthened(layer, tap, *_projected(layer, tap, query, key, value))
    mask = _causal(queries, keys) if causal else _mask(layer, queries, keys, attn_mask, key_padding_mask)
    heads = Heads(_heads(layer, queries), _heads(layer, keys), _heads(layer, values), mask)
    attended, weights = _weighed(layer, heads) if need_weights else (_attended(layer, heads), None)
    outputs = layer.out_proj(attended.transpose(1, 2).flatten(2))
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return outputs if layer.batch_first else outputs.transpose(0, 1), weights


def _check(query: Tensor, attn_mask: Tensor | None, *, is_causal: bool) -> None:
    if query.dim() != 3:
        allowed = "three axes: records, positions and features"
        raise InvalidValue("the query of MultiheadAttention", allowed=allowed, given=tuple(query.shape))
    if is_causal and attn_mask is None:
        raise InvalidValue("attn_mask", allowed="the causal mask, where is_causal says that it is one", given=None)


def _projected(layer: nn.MultiheadAttention, tap: Tap, *arguments: Tensor) -> list[Tensor]:
    """Query, key and value, records first. Where all three are one tensor, one product serves them."""
    weight, bias = _if_any(layer, "in_proj_weight"), _if_any(layer, "in_proj_bias")
    if arguments[0] is arguments[1] is arguments[2] and weight is not None:
        inputs = _records_first(layer, arguments[0])
        together = functional.linear(inputs, weight, bias)
        return list(tap("together", inputs, together).chunk(3, dim=-1))
    weights = [getattr(layer, f"{name[0]}_proj_weight") for name in _APART] if weight is None else weight.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    projected = []
    for site, own_weight, own_bias, argument in zip(_APART, weights, biases, arguments, strict=True):
        inputs = _records_first(layer, argument)
        projected.append(tap(site, inputs, functional.linear(inputs, own_weight, own_bias)))
    return projected


def _if_any(layer: nn.MultiheadAttention, name: str) -> Tensor | None:
    found: Tensor | None = getattr(layer, name)
    return found


def _records_first(layer: nn.MultiheadAttention, argument: Tensor) -> Tensor:
    return argument if layer.batch_first else argument.transpose(0, 1)


def _lengthened(
    layer: nn.MultiheadAttention, tap: Tap, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values with what the layer appends to every sequence: a learned pair, a pair of zeros."""
    bias_k, bias_v = _if_any(layer, "bias_k"), _if_any(layer, "bias_v")
    if bias_k is not None and bias_v is not None:
        more_keys, more_values = bias_k.expand(keys.shape[0], -1, -1), bias_v.expand(values.shape[0], -1, -1)
        keys = torch.cat([keys, tap("bias_k", more_keys, more_keys)], dim=1)
        values = torch.cat([values, tap("bias_v", more_values, more_values)], dim=1)
    if layer.add_zero_attn:
        keys, values = functional.pad(keys, (0, 0, 0, 1)), functional.pad(values, (0, 0, 0, 1))
    return queries, keys, values


def _mask(
    layer: nn.MultiheadAttention,
    queries: Tensor,
    keys: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
) -> Tensor | None:
    """Both masks as one that is added to the scores, broadcast against records, heads, queries, keys."""
    records, added = queries.shape[0], []
    if attn_mask is not None:
        split = attn_mask if attn_mask.dim() == 2 else attn_mask.view(records, layer.num_heads, *attn_mask.shape[1:])
        added.append(_additive(split, queries.dtype))
    if key_padding_mask is not None:
        added.append(_additive(key_padding_mask, queries.dtype)[:, None, None])
    if not added:
        return None
    more = keys.shape[1] - added[0].shape[-1]
    return sum(functional.pad(mask, (0, more)) for mask in added)  # type: ignore[return-value]


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)


def _causal(queries: Tensor, keys: Tensor) -> Tensor:
    later = torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool, device=queries.device).triu(1)
    return _additive(later, queries.dtype)


def _heads(layer: nn.MultiheadAttention, projected: Tensor) -> Tensor:
    return projected.reshape(*projected.shape[:2], layer.num_heads, layer.head_dim).transpose(1, 2)


def _attended(layer: nn.MultiheadAttention, heads: Heads) -> Tensor:
    queries, keys, values, mask = heads
    if queries.is_cuda:
        dropout = layer.dropout if layer.training else 0.0
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropout)
    # The CPU's fused function cannot be mapped over records. As there, a query that may see nothing attends to nothing.
    if mask is None:
        return _weighed(layer, heads)[0]
    sees_nothing = (mask == -torch.inf).all(-1, keepdim=True)
    attended, _ = _weighed(layer, heads._replace(mask=mask.masked_fill(sees_nothing, 0)))
    return attended.masked_fill(sees_nothing, 0)


def _weighed(layer: nn.MultiheadAttention, heads: Heads) -> tuple[Tensor, Tensor]:
    scores = (heads.queries / math.sqrt(layer.head_dim)) @ heads.keys.transpose(-1, -2)
    weights = functional.softmax(scores if heads.mask is None else scores + heads.mask, dim=-1)
    weights = functional.dropout(weights, layer.dropout, training=layer.training)
    return weights @ heads.values, weights


def _contributions(layer: nn.MultiheadAttention, sites: Mapping[str, Site]) -> Contributions:
    found: dict[str, Contribution | Tensor] = {}
    if "together" in sites:
        found["in_proj_weight"] = outer_product(sites["together"])
        found["in_proj_bias"] = bias_grads(sites["together"])
    else:
        apart = [sites[name] for name in _APART]
        found["in_proj_weight"] = Stacked(tuple(outer_product(site) for site in apart))
        found["in_proj_bias"] = Stacked(tuple(Materialised(bias_grads(site)) for site in apart))
        found |= {f"{name[0]}_proj_weight": outer_product(sites[name]) for name in _APART}
    for name in {"bias_k", "bias_v"} & set(sites):
        grads = sites[name].output_grads
        found[name] = grads.sum(1, keepdim=True, dtype=at_least_float32(grads.dtype))
    return found


def _refuses(layer: nn.MultiheadAttention) -> str | None:
    if type(layer.out_proj).forward is not nn.Linear.forward:
        return "its out_proj is not a Linear layer, so its gradients are not known; write the attention out as layers"
    return None


register_layer_rule(
    nn.MultiheadAttention,
    LayerRule(contributions=_contributions, forward=_forward, refuses=_refuses, covers_children=True),
)
