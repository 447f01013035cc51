"""The layer rules: how each kind of layer is run and what a record contributes to its parameters.

    normalisations   LayerNorm, RMSNorm, GroupNorm, InstanceNorm, and BatchNorm with fixed statistics
    products         Linear, PReLU, Embedding, EmbeddingBag; an embedding table's gradient is never dense
    convolutions     plain and transposed, in one, two and three dimensions, with every option
    attention        MultiheadAttention with every option that torch's own has on batches

Importing this module registers them.

Normalisations take their statistics in float32 or better and keep the memory format of the input. Most tap the
normalised input, so that the gradients of gain and shift are plain sums. LayerNorm, and GroupNorm on a CPU, let torch's
own layer compute the output in one pass, and compute the tapped input once more without gain and shift. GroupNorm on a
GPU gives each image its own copy of gain and shift and taps those. Its statistics are taken channel by channel first
and combined for each group afterwards, so that a backward pass reads the images once for sums over space and once more
for the gradient that it passes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import InvalidValue
from lehr.gradients.contributions import Lookup, Materialised, Stacked, outer
from lehr.gradients.convolutions import Convolved, Geometry
from lehr.interfaces import Contribution, Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule

_InstanceNorm: TypeAlias = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
_BatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def standardised(values: Tensor, axes: Sequence[int], *, eps: float) -> Tensor:
    """The values with mean zero and variance one over the axes, in float32 or better, with the strides kept."""
    exact = values.to(at_least_float32(values.dtype))
    if not exact.numel():  # an empty batch has no statistics, and asking for them warns
        return exact
    variance, mean = torch.var_mean(exact, dim=tuple(axes), correction=0, keepdim=True)
    return (exact - mean) * torch.rsqrt(variance + eps)


def affine(tap: Tap, normalised: Tensor, *, gain: Tensor | None, shift: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Apply gain and shift, already shaped to be broadcast, and tap; without either there is nothing to tap."""
    if gain is None and shift is None:
        return normalised.to(dtype)
    outputs = normalised if gain is None else normalised * gain
    outputs = outputs if shift is None else outputs + shift
    return tap("output", normalised, outputs.to(dtype))


def per_channel(numbers: Tensor, values: Tensor) -> Tensor:
    """One number per channel, shaped to be broadcast against ``values``, whose axis 1 has the channels."""
    return numbers.reshape(-1, *(1 for _ in values.shape[2:]))


def affine_per_channel(layer: Any, tap: Tap, normalised: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Apply the gain and shift that a layer has for each channel, and tap."""
    gain, shift = (None if own is None else per_channel(own, normalised) for own in (layer.weight, layer.bias))
    return affine(tap, normalised, gain=gain, shift=shift, dtype=dtype)


def by_fixed_statistics(layer: nn.Module, tap: Tap, values: Tensor, *, mean: Tensor, inverse_std: Tensor) -> Tensor:
    """The forward pass of a layer that normalises by these numbers per channel."""
    exact = values.to(at_least_float32(values.dtype))
    normalised = (exact - per_channel(mean, values)) * per_channel(inverse_std, values)
    return affine_per_channel(layer, tap, normalised, dtype=values.dtype)


def affine_grads(site: Site, summed: Sequence[int]) -> Contributions:
    """The gradients of gain and shift: sums over every axis that they were broadcast along."""
    output_grads = site.output_grads.to(site.inputs.dtype)
    axes = tuple(summed)
    return {"weight": (output_grads * site.inputs).sum(axes), "bias": output_grads.sum(axes)}


def all_but_channels(site: Site) -> tuple[int, ...]:
    """Views and space, where a site's axes are ``BKC...``."""
    return (1, *range(3, site.inputs.dim()))


def _layer_norm(layer: nn.LayerNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
    shape = layer.normalized_shape
    if not input.numel() or not input.is_contiguous():
        normalised = standardised(input, range(-len(shape), 0), eps=layer.eps)
        return affine(tap, normalised, gain=layer.weight, shift=layer.bias, dtype=input.dtype)
    exact = input.to(at_least_float32(input.dtype))
    parameters: list[Tensor | None] = [layer.weight, layer.bias]
    gain, shift = (None if own is None else own.to(exact.dtype) for own in parameters)
    output = functional.layer_norm(exact, shape, gain, shift, layer.eps).to(input.dtype)
    if gain is None and shift is None:
        return output
    with torch.no_grad():
        normalised = functional.layer_norm(exact, shape, eps=layer.eps)
    return tap("output", normalised, output)


def _layer_norm_grads(layer: nn.LayerNorm, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    return affine_grads(site, range(1, site.inputs.dim() - len(layer.normalized_shape)))


def _rms_norm(layer: nn.RMSNorm, tap: Tap, x: Tensor) -> Tensor:
    exact = x.to(at_least_float32(x.dtype))
    axes = tuple(range(-len(layer.normalized_shape), 0))
    eps = torch.finfo(exact.dtype).eps if layer.eps is None else layer.eps
    normalised = exact * torch.rsqrt(exact.square().mean(axes, keepdim=True) + eps)
    return affine(tap, normalised, gain=layer.weight, shift=None, dtype=x.dtype)


def _rms_norm_grads(layer: nn.RMSNorm, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    return {"weight": affine_grads(site, range(1, site.inputs.dim() - len(layer.normalized_shape)))["weight"]}


def _group_norm(layer: nn.GroupNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
    exact = input.to(at_least_float32(input.dtype))
    run = _by_torch if exact.device.type == "cpu" else _by_copies
    return run(layer, tap, exact).to(input.dtype)


def _by_torch(layer: nn.GroupNorm, tap: Tap, exact: Tensor) -> Tensor:
    if not layer.affine:
        return torch.group_norm(exact, layer.num_groups, eps=layer.eps)
    gain, shift = layer.weight.to(exact.dtype), layer.bias.to(exact.dtype)
    output = torch.group_norm(exact, layer.num_groups, gain, shift, layer.eps)
    with torch.no_grad():
        normalised = torch.group_norm(exact, layer.num_groups, eps=layer.eps)
    return tap("output", normalised, output)


def _by_copies(layer: nn.GroupNorm, tap: Tap, exact: Tensor) -> Tensor:
    mean_NC, scale_NC = _statistics(exact, layer.num_groups, layer.eps)
    shift_NC = -mean_NC * scale_NC
    if layer.affine:
        copies = (own.to(exact.dtype).expand(exact.shape[0], -1) for own in (layer.weight, layer.bias))
        gain_NC, own_shift_NC = (tap(name, own, own) for name, own in zip(("weight", "bias"), copies, strict=True))
        scale_NC, shift_NC = scale_NC * gain_NC, shift_NC * gain_NC + own_shift_NC
    across = (*exact.shape[:2], *(1 for _ in exact.shape[2:]))
    return exact * scale_NC.reshape(across) + shift_NC.reshape(across)


def _statistics(exact: Tensor, num_groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """The mean, and one over the deviation, of each channel's group."""
    variance, mean = torch.zeros_like(exact), exact
    if exact.dim() > 2 and exact.numel():  # an empty batch has no statistics, and asking for them warns
        variance, mean = torch.var_mean(exact, dim=tuple(range(2, exact.dim())), correction=0)
    images, channels = exact.shape[:2]
    grouped = (images, num_groups, channels // num_groups)
    variance, mean = variance.reshape(grouped), mean.reshape(grouped)
    group_mean = mean.mean(2, keepdim=True)
    group_variance = variance.mean(2, keepdim=True) + (mean - group_mean).square().mean(2, keepdim=True)
    scale = torch.rsqrt(group_variance + eps)
    return group_mean.expand(grouped).reshape(images, channels), scale.expand(grouped).reshape(images, channels)


def _group_norm_grads(layer: nn.GroupNorm, sites: Mapping[str, Site]) -> Contributions:
    """From the normalised input; or the gradients of the copies, added up over views, axes ``BKC``."""
    if "output" in sites:
        return affine_grads(sites["output"], all_but_channels(sites["output"]))
    return {name: site.output_grads.sum(1) for name, site in sites.items()}


def _instance_norm(layer: _InstanceNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    axes = layer._get_no_batch_dim() + 1
    if input.dim() != axes:
        allowed = f"a tensor of {axes} axes: records, channels, space"
        raise InvalidValue(f"the input of {type(layer).__name__}", allowed=allowed, given=tuple(input.shape))
    if layer.running_mean is not None and not layer.training:
        return _batch_norm(layer, tap, input)
    normalised = standardised(input, range(2, input.dim()), eps=layer.eps)
    return affine_per_channel(layer, tap, normalised, dtype=input.dtype)


def _refuses_statistics(layer: _InstanceNorm) -> str | None:
    if layer.training and layer.running_mean is not None:
        return (
            "it keeps a running mean of the private records in its buffers, without noise; "
            "build it with track_running_stats=False, or call eval() on it to use the statistics that it has"
        )
    return None


def _batch_norm(layer: _BatchNorm | _InstanceNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    assert layer.running_mean is not None  # otherwise it uses the batch, which is refused
    assert layer.running_var is not None
    variance = layer.running_var.to(at_least_float32(input.dtype))
    inverse_std = torch.rsqrt(variance + layer.eps)
    return by_fixed_statistics(layer, tap, input, mean=layer.running_mean, inverse_std=inverse_std)


def per_channel_grads(layer: nn.Module, sites: Mapping[str, Site]) -> Contributions:
    """The gradients of a gain and a shift per channel."""
    return affine_grads(sites["output"], all_but_channels(sites["output"]))


def outer_product(site: Site) -> Contribution:
    """The gradients of the weight: every axis between the record and the features is a position."""
    return outer(_positions(site.output_grads), _positions(site.inputs))


def bias_grads(site: Site) -> Tensor:
    """The gradients of the bias: the output gradients summed over positions, in float32 or better."""
    grads = site.output_grads
    return _positions(grads).sum(1, dtype=at_least_float32(grads.dtype))


def _positions(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], values.shape[1:-1].numel(), values.shape[-1])


def _linear(layer: nn.Linear, sites: Mapping[str, Site]) -> Contributions:
    return {"weight": outer_product(sites["output"]), "bias": bias_grads(sites["output"])}


def _prelu(layer: nn.PReLU, sites: Mapping[str, Site]) -> Contributions:
    """One slope for all channels, or one for each."""
    site = sites["output"]
    exact = at_least_float32(site.inputs.dtype)
    products = site.output_grads.to(exact) * site.inputs.to(exact).clamp_max(0)
    if layer.num_parameters > 1:
        return {"weight": products.sum(all_but_channels(site))}
    return {"weight": products.sum(tuple(range(1, products.dim()))).unsqueeze(1)}


def _embedding(layer: nn.Embedding | nn.EmbeddingBag, sites: Mapping[str, Site]) -> Contributions:
    """Every axis behind the record is a position. The padding row is never trained."""
    rows, grads = sites["output"].inputs, sites["output"].output_grads
    if layer.padding_idx is not None:
        grads = grads.masked_fill((rows == layer.padding_idx).unsqueeze(-1), 0)
    records, positions = rows.shape[0], rows.shape[1:].numel()
    grads = grads.reshape(records, positions, layer.embedding_dim)
    return {"weight": Lookup(rows.reshape(records, positions), grads, layer.num_embeddings)}


def _refuses_table(layer: nn.Embedding | nn.EmbeddingBag) -> str | None:
    if layer.max_norm is not None:
        return (
            "with max_norm it rescales the rows that private records look up, without noise; "
            "build it with max_norm=None, and bound the rows after the update if they have to be"
        )
    is_trained: bool = layer.weight.requires_grad
    if layer.scale_grad_by_freq and is_trained:
        return (
            "with scale_grad_by_freq one record's gradient depends on how often others use a word; "
            "build it with scale_grad_by_freq=False"
        )
    return None


def _embedding_bag(
    layer: nn.EmbeddingBag,
    tap: Tap,
    input: Tensor,  # noqa: A002  (torch's own keyword)
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Look up first and reduce afterwards, so that there is an output to tap. One bag per record or view."""
    if input.dim() != 2 or offsets is not None:
        # With offsets nothing says where one record ends.
        allowed = "two axes, records and positions, and no offsets"
        raise InvalidValue("the input of EmbeddingBag", allowed=allowed, given=tuple(input.shape))
    looked_up = tap("output", input, functional.embedding(input, layer.weight))
    if per_sample_weights is not None:
        looked_up = looked_up * per_sample_weights.unsqueeze(-1)
    is_real = torch.ones_like(input, dtype=torch.bool) if layer.padding_idx is None else input != layer.padding_idx
    num_real, is_real = is_real.sum(1, keepdim=True), is_real.unsqueeze(-1)
    if layer.mode == "max":
        return torch.where(num_real > 0, looked_up.masked_fill(~is_real, -torch.inf).max(1).values, 0)
    total = looked_up.masked_fill(~is_real, 0).sum(1)
    return total / num_real.clamp_min(1) if layer.mode == "mean" else total


_Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
_Transposed: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def _bias_grads(site: Site) -> Tensor:
    """The output gradients summed over views and space, in float32 or better."""
    grads = site.output_grads
    return grads.sum((1, *range(3, grads.dim())), dtype=at_least_float32(grads.dtype))


def _convolution(layer: _Convolution, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    inputs, output_grads = site.inputs.flatten(0, 1), site.output_grads.flatten(0, 1)
    around = _around(layer)
    if layer.padding_mode == "zeros" and around[::2] == around[1::2]:
        padding = tuple(around[::-2])
    else:  # not zeros, or not the same on both sides: pad first, then convolve without padding
        inputs = functional.pad(inputs, around, mode=layer.padding_mode.replace("zeros", "constant"))
        padding = (0,) * len(layer.kernel_size)
    geometry = Geometry(layer.kernel_size, layer.stride, padding, layer.dilation, layer.groups)
    return {"weight": Convolved(inputs, output_grads, geometry, site.inputs.shape[0]), "bias": _bias_grads(site)}


def _around(layer: _Convolution) -> list[int]:
    """The padding as ``functional.pad`` wants it: last axis first, before and after."""
    if not isinstance(layer.padding, str):
        return [amount for amount in reversed(layer.padding) for _ in range(2)]
    if layer.padding == "valid":
        return [0, 0] * len(layer.kernel_size)
    reach = [d * (k - 1) for d, k in zip(reversed(layer.dilation), reversed(layer.kernel_size), strict=True)]
    return [amount for total in reach for amount in (total // 2, total - total // 2)]


def _transposed(layer: _Transposed, sites: Mapping[str, Site]) -> Contributions:
    """A convolution in which input and output gradient have changed places."""
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
    return {"weight": Convolved(output_grads, inputs, geometry, site.inputs.shape[0]), "bias": _bias_grads(site)}


def _excess(layer: _Transposed, inputs: Tensor, output_grads: Tensor) -> list[int]:
    """How much longer each axis of the output is than the filter reaches: what ``output_padding`` adds."""
    settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return [
        after + 2 * padding - (before - 1) * stride - dilation * (kernel - 1) - 1
        for before, after, kernel, stride, padding, dilation in zip(
            inputs.shape[2:], output_grads.shape[2:], *settings, strict=True
        )
    ]


_APART = ("query", "key", "value")


def _attention(
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
    """The output layer has its own rule. Tapped are the projections, and the key and value that may be appended."""
    if query.dim() != 3:
        allowed = "three axes: records, positions and features"
        raise InvalidValue("the query of MultiheadAttention", allowed=allowed, given=tuple(query.shape))
    if is_causal and attn_mask is None:
        raise InvalidValue("attn_mask", allowed="the causal mask, where is_causal says that it is one", given=None)
    queries, keys, values = _projected(layer, tap, query, key, value)
    if layer.bias_k is not None and layer.bias_v is not None:
        more_keys, more_values = (own.expand(keys.shape[0], -1, -1) for own in (layer.bias_k, layer.bias_v))
        keys = torch.cat([keys, tap("bias_k", more_keys, more_keys)], dim=1)
        values = torch.cat([values, tap("bias_v", more_values, more_values)], dim=1)
    if layer.add_zero_attn:
        keys, values = functional.pad(keys, (0, 0, 0, 1)), functional.pad(values, (0, 0, 0, 1))
    if is_causal and key_padding_mask is None and not need_weights:
        attn_mask = torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool, device=queries.device).triu(1)
    mask = _mask(layer, queries, keys, attn_mask, key_padding_mask)
    queries, keys, values = (
        projected.reshape(*projected.shape[:2], layer.num_heads, layer.head_dim).transpose(1, 2)
        for projected in (queries, keys, values)
    )
    weights: Tensor | None = None
    if need_weights:
        attended, weights = _weighed(layer, queries, keys, values, mask)
        weights = weights.mean(1) if average_attn_weights else weights
    elif queries.is_cuda:
        dropout = layer.dropout if layer.training else 0.0
        attended = functional.scaled_dot_product_attention(queries, keys, values, mask, dropout_p=dropout)
    elif mask is None:  # the CPU's fused function cannot be mapped over records
        attended, _ = _weighed(layer, queries, keys, values, None)
    else:  # as there, a query that may see nothing attends to nothing
        sees_nothing = (mask == -torch.inf).all(-1, keepdim=True)
        attended, _ = _weighed(layer, queries, keys, values, mask.masked_fill(sees_nothing, 0))
        attended = attended.masked_fill(sees_nothing, 0)
    outputs = layer.out_proj(attended.transpose(1, 2).flatten(2))
    return outputs if layer.batch_first else outputs.transpose(0, 1), weights


def _projected(layer: nn.MultiheadAttention, tap: Tap, *arguments: Tensor) -> list[Tensor]:
    """Query, key and value, records first. Where all three are one tensor, one product serves them."""
    weight: Tensor | None = layer.in_proj_weight
    bias: Tensor | None = layer.in_proj_bias
    inputs = [argument if layer.batch_first else argument.transpose(0, 1) for argument in arguments]
    if arguments[0] is arguments[1] is arguments[2] and weight is not None:
        return list(tap("together", inputs[0], functional.linear(inputs[0], weight, bias)).chunk(3, dim=-1))
    weights = [getattr(layer, f"{name[0]}_proj_weight") for name in _APART] if weight is None else weight.chunk(3)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return [
        tap(site, own, functional.linear(own, own_weight, own_bias))
        for site, own_weight, own_bias, own in zip(_APART, weights, biases, inputs, strict=True)
    ]


def _mask(
    layer: nn.MultiheadAttention,
    queries: Tensor,
    keys: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
) -> Tensor | None:
    """Both masks as one that is added to the scores, broadcast against records, heads, queries, keys."""

    def additive(mask: Tensor) -> Tensor:
        is_left_out = mask.dtype == torch.bool
        added = torch.zeros_like(mask, dtype=queries.dtype) if is_left_out else mask.to(queries.dtype)
        added = added.masked_fill(mask, -torch.inf) if is_left_out else added
        return functional.pad(added, (0, keys.shape[1] - mask.shape[-1]))

    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.view(queries.shape[0], layer.num_heads, *attn_mask.shape[1:])
    padding = None if key_padding_mask is None else additive(key_padding_mask)[:, None, None]
    if attn_mask is None or padding is None:
        return padding if attn_mask is None else additive(attn_mask)
    return additive(attn_mask) + padding


def _weighed(
    layer: nn.MultiheadAttention, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores = (queries / math.sqrt(layer.head_dim)) @ keys.transpose(-1, -2)
    weights = functional.softmax(scores if mask is None else scores + mask, dim=-1)
    weights = functional.dropout(weights, layer.dropout, training=layer.training)
    return weights @ values, weights


def _attention_grads(layer: nn.MultiheadAttention, sites: Mapping[str, Site]) -> Contributions:
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


def _refuses_attention(layer: nn.MultiheadAttention) -> str | None:
    if type(layer.out_proj).forward is not nn.Linear.forward:
        return "its out_proj is not a Linear layer, so its gradients are not known; write the attention out as layers"
    return None


_kinds: tuple[type[nn.Module], ...]
for _kinds, _rule in (
    ((nn.LayerNorm,), LayerRule(contributions=_layer_norm_grads, forward=_layer_norm)),
    ((nn.RMSNorm,), LayerRule(contributions=_rms_norm_grads, forward=_rms_norm)),
    ((nn.GroupNorm,), LayerRule(contributions=_group_norm_grads, forward=_group_norm)),
    (
        (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        LayerRule(contributions=per_channel_grads, forward=_instance_norm, refuses=_refuses_statistics),
    ),
    (
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        LayerRule(contributions=per_channel_grads, forward=_batch_norm),
    ),
    ((nn.Linear,), LayerRule(contributions=_linear)),
    ((nn.PReLU,), LayerRule(contributions=_prelu)),
    ((nn.Embedding,), LayerRule(contributions=_embedding, refuses=_refuses_table)),
    ((nn.EmbeddingBag,), LayerRule(contributions=_embedding, forward=_embedding_bag, refuses=_refuses_table)),
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), LayerRule(contributions=_convolution)),
    ((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), LayerRule(contributions=_transposed)),
    (
        (nn.MultiheadAttention,),
        LayerRule(contributions=_attention_grads, forward=_attention, refuses=_refuses_attention, covers_children=True),
    ),
):
    for _kind in _kinds:
        register_layer_rule(_kind, _rule)
