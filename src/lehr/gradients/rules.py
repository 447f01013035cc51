"""The layer rules: how each kind of layer is run and what a record contributes to its parameters.

    normalisations   LayerNorm, RMSNorm and its variants of other libraries, which are recognised by what they compute,
                     GroupNorm, InstanceNorm, and BatchNorm with fixed statistics
    products         Linear, PReLU, Embedding, EmbeddingBag; an embedding table's gradient is never dense
    convolutions     plain and transposed, in one, two and three dimensions, with every option
    attention        MultiheadAttention with every option that torch's own has on batches

Importing this module registers them.

Normalisations take their statistics in float32 or better and keep the memory format of the input. Most tap the
normalised input, so that the gradients of gain and shift are plain sums. LayerNorm, and GroupNorm on a CPU or in a
user's own loop, let torch's own layer compute the output in one pass, and compute the tapped input once more without
gain and shift. Otherwise GroupNorm on a GPU gives each image its own copy of gain and shift and taps those. Its
statistics are taken channel by channel first and combined for each group afterwards, so that a backward pass reads the
images once for sums over space and once more for the gradient that it passes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import InvalidValue
from lehr.gradients.contributions import Lookup, Materialised, Stacked, outer
from lehr.gradients.convolutions import Convolved, Geometry
from lehr.gradients.execution import FunctionalModel, plain_forward
from lehr.interfaces import (
    Contribution,
    Contributions,
    LayerRule,
    Site,
    Tap,
    at_least_float32,
    register_layer_rule,
    register_rule_finder,
)

Sites: TypeAlias = Mapping[str, Site]
_EPS = ("variance_epsilon", "eps")  # what RMSNorms of other libraries call it
_InstanceNorm: TypeAlias = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
_BatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm
_Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
_Transposed: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


def _exact(values: Tensor) -> Tensor:
    return values.to(at_least_float32(values.dtype))


def _standardised(values: Tensor, axes: Iterable[int], *, eps: float) -> Tensor:
    """The values with mean zero and variance one over the axes, in float32 or better, with the strides kept."""
    exact = _exact(values)
    if not exact.numel():  # an empty batch has no statistics, and asking for them warns
        return exact
    variance, mean = torch.var_mean(exact, dim=tuple(axes), correction=0, keepdim=True)
    return (exact - mean) * torch.rsqrt(variance + eps)


def _affine(layer: Any, tap: Tap, normalised: Tensor, *, dtype: torch.dtype, is_per_channel: bool = False) -> Tensor:
    """Apply the gain and shift that the layer has, and tap; without either there is nothing to tap."""
    gain, shift = layer.weight, getattr(layer, "bias", None)
    if gain is None and shift is None:
        return normalised.to(dtype)
    outputs = normalised
    if gain is not None:
        outputs = outputs * (_per_channel(gain, normalised) if is_per_channel else gain)
    if shift is not None:
        outputs = outputs + (_per_channel(shift, normalised) if is_per_channel else shift)
    return tap("output", normalised, outputs.to(dtype))


def _per_channel(numbers: Tensor, values: Tensor) -> Tensor:
    """One number per channel, shaped to be broadcast against ``values``, whose axis 1 has the channels."""
    return numbers.reshape(-1, *(1 for _ in values.shape[2:]))


def _affine_grads(site: Site, summed: Iterable[int]) -> Contributions:
    """The gradients of gain and shift: sums over every axis that they were broadcast along."""
    output_grads, axes = site.output_grads.to(site.inputs.dtype), tuple(summed)
    return {"weight": (output_grads * site.inputs).sum(axes), "bias": output_grads.sum(axes)}


def _all_but_channels(values: Tensor) -> tuple[int, ...]:
    """Views and space, where the axes are ``BKC...``."""
    return (1, *range(3, values.dim()))


def _layer_norm(layer: nn.LayerNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
    shape = layer.normalized_shape
    if not input.numel() or not input.is_contiguous():
        normalised = _standardised(input, range(-len(shape), 0), eps=layer.eps)
        return _affine(layer, tap, normalised, dtype=input.dtype)
    exact = _exact(input)
    parameters: list[Tensor | None] = [layer.weight, layer.bias]
    gain, shift = (None if own is None else own.to(exact.dtype) for own in parameters)
    output = functional.layer_norm(exact, shape, gain, shift, layer.eps).to(input.dtype)
    if gain is None and shift is None:
        return output
    with torch.no_grad():
        normalised = functional.layer_norm(exact, shape, eps=layer.eps)
    return tap("output", normalised, output)


def _rms_norm(layer: nn.RMSNorm, tap: Tap, x: Tensor) -> Tensor:
    exact = _exact(x)
    axes = tuple(range(-len(layer.normalized_shape), 0))
    eps = torch.finfo(exact.dtype).eps if layer.eps is None else layer.eps
    normalised = exact * torch.rsqrt(exact.square().mean(axes, keepdim=True) + eps)
    return _affine(layer, tap, normalised, dtype=x.dtype)


def _layer_norm_grads(layer: nn.LayerNorm | nn.RMSNorm, sites: Sites) -> Contributions:
    return _affine_grads(sites["output"], range(1, sites["output"].inputs.dim() - len(layer.normalized_shape)))


@dataclass(frozen=True)
class _RmsVariant:
    """x / √(mean(x²) + eps), times the weight plus an offset; some take the mean, or all of it, in float32."""

    eps: float
    offset: float
    has_float32_mean: bool
    is_float32: bool

    def __call__(self, layer: Any, tap: Tap, hidden_states: Tensor) -> Tensor:
        normalised = self.normalised(hidden_states)
        return tap("output", normalised, (normalised * (self.offset + layer.weight)).to(hidden_states.dtype))

    def normalised(self, values: Tensor) -> Tensor:
        exact = values.float() if self.is_float32 else _exact(values)
        averaged = exact.float() if self.has_float32_mean else exact
        return (exact * torch.rsqrt(averaged.square().mean(-1, keepdim=True) + self.eps)).to(_exact(values).dtype)


def _rms_variant_grads(layer: nn.Module, sites: Sites) -> Contributions:
    site = sites["output"]
    products = site.output_grads.to(site.inputs.dtype) * site.inputs
    return {"weight": products.sum(tuple(range(1, products.dim() - 1)))}


def _find_rms_norm(layer: nn.Module) -> LayerRule | None:
    """The rule of an RMSNorm of another library. Which variant it is, if any, is tried on made-up numbers."""
    weight, eps = layer._parameters.get("weight"), next((vars(layer)[name] for name in _EPS if name in vars(layer)), 0)
    has_others = len(layer._parameters) > 1 or layer._buffers or layer._modules
    if weight is None or weight.dim() != 1 or not isinstance(eps, float) or has_others:
        return None
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 2, len(weight)), (len(weight),))
    inputs, gains = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    try:
        with torch.no_grad():
            output = FunctionalModel(layer, plain_forward(layer))({"weight": gains}, (inputs,), {})
    except Exception:  # another kind of layer
        return None
    if not isinstance(output, Tensor) or output.shape != inputs.shape:
        return None

    def difference(variant: _RmsVariant) -> float:
        return float((variant.normalised(inputs) * (variant.offset + gains) - output).abs().max())

    settings = product((0.0, 1.0), (False, True), (False, True))
    nearest = min((_RmsVariant(eps, *setting) for setting in settings), key=difference)
    is_one = difference(nearest) < 1e-5  # some round the weight to float32 too
    return LayerRule(contributions=_rms_variant_grads, forward=nearest) if is_one else None


def _group_norm(layer: nn.GroupNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    if input.device.type == "cpu":
        return _by_torch(layer, tap, input)
    return _by_copies(layer, tap, _exact(input)).to(input.dtype)


def _by_torch(layer: nn.GroupNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    exact = _exact(input)
    if not layer.affine:
        return torch.group_norm(exact, layer.num_groups, eps=layer.eps).to(input.dtype)
    gain, shift = layer.weight.to(exact.dtype), layer.bias.to(exact.dtype)
    output = torch.group_norm(exact, layer.num_groups, gain, shift, layer.eps)
    with torch.no_grad():
        normalised = torch.group_norm(exact, layer.num_groups, eps=layer.eps)
    return tap("output", normalised, output.to(input.dtype))


def _by_copies(layer: nn.GroupNorm, tap: Tap, exact: Tensor) -> Tensor:
    images, channels = exact.shape[:2]
    variance, mean = torch.zeros_like(exact), exact
    if exact.dim() > 2 and exact.numel():  # an empty batch has no statistics, and asking for them warns
        variance, mean = torch.var_mean(exact, dim=tuple(range(2, exact.dim())), correction=0)
    grouped = (images, layer.num_groups, channels // layer.num_groups)
    variance, mean = variance.reshape(grouped), mean.reshape(grouped)
    group_mean = mean.mean(2, keepdim=True)
    group_variance = variance.mean(2, keepdim=True) + (mean - group_mean).square().mean(2, keepdim=True)
    scale_NC = torch.rsqrt(group_variance + layer.eps).expand(grouped).reshape(images, channels)
    shift_NC = -group_mean.expand(grouped).reshape(images, channels) * scale_NC
    if layer.affine:
        copies = (own.to(exact.dtype).expand(images, -1) for own in (layer.weight, layer.bias))
        gain_NC, own_shift_NC = (tap(name, own, own) for name, own in zip(("weight", "bias"), copies, strict=True))
        scale_NC, shift_NC = scale_NC * gain_NC, shift_NC * gain_NC + own_shift_NC
    across = (images, channels, *(1 for _ in exact.shape[2:]))
    return exact * scale_NC.reshape(across) + shift_NC.reshape(across)


def _group_norm_grads(layer: nn.GroupNorm, sites: Sites) -> Contributions:
    """From the normalised input; or the gradients of the copies, added up over views, axes ``BKC``."""
    if "output" in sites:
        return _per_channel_grads(layer, sites)
    return {name: site.output_grads.sum(1) for name, site in sites.items()}


def _instance_norm(layer: _InstanceNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    axes = layer._get_no_batch_dim() + 1
    if input.dim() != axes:
        allowed = f"a tensor of {axes} axes: records, channels, space"
        raise InvalidValue(f"the input of {type(layer).__name__}", allowed=allowed, given=tuple(input.shape))
    if layer.running_mean is not None and not layer.training:
        return _batch_norm(layer, tap, input)
    normalised = _standardised(input, range(2, input.dim()), eps=layer.eps)
    return _affine(layer, tap, normalised, dtype=input.dtype, is_per_channel=True)


def _batch_norm(layer: _BatchNorm | _InstanceNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    assert layer.running_mean is not None  # otherwise it uses the batch, which is refused
    assert layer.running_var is not None
    inverse_std = torch.rsqrt(layer.running_var.to(at_least_float32(input.dtype)) + layer.eps)
    normalised = (_exact(input) - _per_channel(layer.running_mean, input)) * _per_channel(inverse_std, input)
    return _affine(layer, tap, normalised, dtype=input.dtype, is_per_channel=True)


def _per_channel_grads(layer: nn.Module, sites: Sites) -> Contributions:
    return _affine_grads(sites["output"], _all_but_channels(sites["output"].inputs))


def outer_product(site: Site, *, rows: int | None = None) -> Contribution:
    """The gradients of the weight: every axis between the record and the features is a position."""
    return outer(_positions(site.output_grads), _positions(site.inputs), rows)


def bias_grads(site: Site) -> Tensor:
    """The gradients of the bias: the output gradients summed over positions, in float32 or better."""
    grads = site.output_grads
    return _positions(grads).sum(1, dtype=at_least_float32(grads.dtype))


def _positions(values: Tensor) -> Tensor:
    return values.reshape(values.shape[0], values.shape[1:-1].numel(), values.shape[-1])


_ALIGNED = 64  # numbers in a row that products of matrices on a GPU read fastest, or a multiple of that
_LARGE_VOCABULARY = 1024


def _is_padded(layer: nn.Linear, values: Tensor) -> bool:
    """A head over a large vocabulary whose number of outputs is odd: products with such rows are slow on a GPU."""
    is_narrow = values.is_cuda and values.dtype == layer.weight.dtype == torch.bfloat16
    return is_narrow and layer.out_features >= _LARGE_VOCABULARY and layer.out_features % 8 != 0


def _run_linear(layer: nn.Linear, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    if not _is_padded(layer, input):
        output = type(layer).forward(layer, input)
        return tap("output", input.to(output.dtype), output)  # under autocast the layer saw it in that type
    more = -layer.out_features % _ALIGNED
    weight = functional.pad(layer.weight, (0, 0, 0, more))
    bias: Tensor | None = layer.bias
    bias = None if bias is None else functional.pad(bias, (0, more))
    return tap("output", input, functional.linear(input, weight, bias))[..., : layer.out_features]


def _linear(layer: nn.Linear, sites: Sites) -> Contributions:
    site = sites["output"]
    rows = layer.out_features if site.output_grads.shape[-1] > layer.out_features else None
    return {"weight": outer_product(site, rows=rows), "bias": bias_grads(site)[:, :rows]}


def _conv1d(layer: nn.Module, sites: Sites) -> Contributions:
    """The linear layer of GPT-2, whose weight is transposed."""
    site = sites["output"]
    turned = Site(inputs=site.output_grads, output_grads=site.inputs)
    return {"weight": outer_product(turned), "bias": bias_grads(site)}


def _prelu(layer: nn.PReLU, sites: Sites) -> Contributions:
    """One slope for all channels, or one for each."""
    site = sites["output"]
    products = _exact(site.output_grads) * _exact(site.inputs).clamp_max(0)
    if layer.num_parameters > 1:
        return {"weight": products.sum(_all_but_channels(products))}
    return {"weight": products.sum(tuple(range(1, products.dim()))).unsqueeze(1)}


def _embedding(layer: nn.Embedding | nn.EmbeddingBag, sites: Sites) -> Contributions:
    """Every axis behind the record is a position. The padding row is never trained."""
    rows, grads = sites["output"].inputs, sites["output"].output_grads
    if layer.padding_idx is not None:
        grads = grads.masked_fill((rows == layer.padding_idx).unsqueeze(-1), 0)
    records, positions = rows.shape[0], rows.shape[1:].numel()
    grads = grads.reshape(records, positions, layer.embedding_dim)
    return {"weight": Lookup(rows.reshape(records, positions), grads, layer.num_embeddings)}


def _whisper_positions(
    layer: nn.Embedding,
    tap: Tap,
    input_ids: Tensor,
    past_key_values_length: int = 0,
    position_ids: Tensor | None = None,
) -> Tensor:
    """The positions of the decoder of Whisper, which all records share unless they are given."""
    if position_ids is None:
        position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0) + past_key_values_length
    return tap("output", position_ids, functional.embedding(position_ids, layer.weight))


def _refuses_table(layer: nn.Embedding | nn.EmbeddingBag) -> str | None:
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
    input: Tensor,  # noqa: A002
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


def _convolved(
    layer: _Convolution | _Transposed, site: Site, inputs: Tensor, output_grads: Tensor, padding: tuple[int, ...]
) -> Contributions:
    geometry = Geometry(layer.kernel_size, layer.stride, padding, layer.dilation, layer.groups)
    grads = site.output_grads
    bias = grads.sum(_all_but_channels(grads), dtype=at_least_float32(grads.dtype))
    return {"weight": Convolved(inputs, output_grads, geometry, site.inputs.shape[0]), "bias": bias}


def _convolution(layer: _Convolution, sites: Sites) -> Contributions:
    site = sites["output"]
    inputs = site.inputs.flatten(0, 1)
    # The padding as ``functional.pad`` wants it: last axis first, before and after.
    if layer.padding == "valid":
        around = [0, 0] * len(layer.kernel_size)
    elif isinstance(layer.padding, str):
        reach = [d * (k - 1) for d, k in zip(reversed(layer.dilation), reversed(layer.kernel_size), strict=True)]
        around = [amount for total in reach for amount in (total // 2, total - total // 2)]
    else:
        around = [amount for amount in reversed(layer.padding) for _ in range(2)]
    padding = tuple(around[::-2])
    if layer.padding_mode != "zeros" or around[::2] != around[1::2]:
        # Not zeros, or not the same on both sides: pad first, then convolve without padding.
        inputs = functional.pad(inputs, around, mode=layer.padding_mode.replace("zeros", "constant"))
        padding = (0,) * len(padding)
    return _convolved(layer, site, inputs, site.output_grads.flatten(0, 1), padding)


def _transposed(layer: _Transposed, sites: Sites) -> Contributions:
    """A convolution in which input and output gradient have changed places."""
    site = sites["output"]
    assert not isinstance(layer.padding, str)
    inputs, output_grads = site.inputs.flatten(0, 1), site.output_grads.flatten(0, 1)
    settings = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    # How much longer each axis of the output is than the filter reaches: what ``output_padding`` adds.
    excess = [
        after + 2 * padding - (before - 1) * stride - dilation * (kernel - 1) - 1
        for before, after, kernel, stride, padding, dilation in zip(
            inputs.shape[2:], output_grads.shape[2:], *settings, strict=True
        )
    ]
    padding = tuple(layer.padding)
    if any(more >= stride for more, stride in zip(excess, layer.stride, strict=True)):
        # A convolution would take one step more than there are inputs: pad first, then cut what no input reaches.
        around = [amount for p, more in zip(padding[::-1], excess[::-1], strict=True) for amount in (p, p - more)]
        output_grads, padding = functional.pad(output_grads, around), (0,) * len(padding)
    return _convolved(layer, site, output_grads, inputs, padding)


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
    if queries.is_cuda and not need_weights:
        dropout = layer.dropout if layer.training else 0.0
        attended = functional.scaled_dot_product_attention(queries, keys, values, mask, dropout_p=dropout)
    else:  # the CPU's fused function cannot be mapped over records
        sees_nothing = None if need_weights or mask is None else (mask == -torch.inf).all(-1, keepdim=True)
        scores = (queries / math.sqrt(layer.head_dim)) @ keys.transpose(-1, -2)
        if mask is not None:
            scores = scores + (mask if sees_nothing is None else mask.masked_fill(sees_nothing, 0))
        weights = functional.dropout(functional.softmax(scores, dim=-1), layer.dropout, training=layer.training)
        attended = weights @ values
        if sees_nothing is not None:  # as in the fused function, a query that may see nothing attends to nothing
            attended = attended.masked_fill(sees_nothing, 0)
        weights = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
    outputs = layer.out_proj(attended.transpose(1, 2).flatten(2))
    return outputs if layer.batch_first else outputs.transpose(0, 1), weights


def _projected(layer: nn.MultiheadAttention, tap: Tap, *arguments: Tensor) -> Sequence[Tensor]:
    """Query, key and value, records first. Where all three are one tensor, one product serves them."""
    weight: Tensor | None = layer.in_proj_weight
    bias: Tensor | None = layer.in_proj_bias
    inputs = [argument if layer.batch_first else argument.transpose(0, 1) for argument in arguments]
    if arguments[0] is arguments[1] is arguments[2] and weight is not None:
        return tap("together", inputs[0], functional.linear(inputs[0], weight, bias)).chunk(3, dim=-1)
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


def _attention_grads(layer: nn.MultiheadAttention, sites: Sites) -> Contributions:
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
    ((nn.RMSNorm,), LayerRule(contributions=_layer_norm_grads, forward=_rms_norm)),
    (
        (nn.GroupNorm,),
        LayerRule(contributions=_group_norm_grads, forward=_group_norm, hooked_forward=_by_torch),
    ),
    (
        (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        LayerRule(contributions=_per_channel_grads, forward=_instance_norm),
    ),
    (
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        LayerRule(contributions=_per_channel_grads, forward=_batch_norm),
    ),
    ((nn.Linear,), LayerRule(contributions=_linear, forward=_run_linear)),
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
# Layers of transformers, by module and class, so that it need not be imported.
_OF_TRANSFORMERS = {
    ("transformers.pytorch_utils", "Conv1D"): LayerRule(contributions=_conv1d),
    ("transformers.models.whisper.modeling_whisper", "WhisperPositionalEmbedding"): LayerRule(
        contributions=_embedding, forward=_whisper_positions
    ),
}


def _find_in_transformers(layer: nn.Module) -> LayerRule | None:
    return _OF_TRANSFORMERS.get((type(layer).__module__, type(layer).__qualname__))


register_rule_finder(_find_rms_norm)
register_rule_finder(_find_in_transformers)
