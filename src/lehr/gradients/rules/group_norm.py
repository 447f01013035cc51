"""GroupNorm, written so that it keeps the memory format of its input and its statistics in float32.

On a CPU torch's own layer is the fastest, and the tap is handed the normalised input. Elsewhere each image gets its
own copy of gain and shift, and the taps are on those: the gradients that the copies receive are the per-record
gradients. Statistics are taken channel by channel first and put together for each group afterwards, so that a backward
pass reads the images once for sums over space and once more for the gradient that it passes on.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lehr.gradients.rules.normalisation import affine_grads, all_but_channels
from lehr.interfaces import Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule


def _forward(layer: nn.GroupNorm, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
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
    mean_NC, scale_NC = _statistics(exact, layer.num_groups, layer.eps)  # noqa: N806
    shift_NC = -mean_NC * scale_NC  # noqa: N806
    if layer.affine:
        gain_NC = _copies(tap, "weight", layer.weight, exact)  # noqa: N806
        scale_NC, shift_NC = scale_NC * gain_NC, shift_NC * gain_NC + _copies(tap, "bias", layer.bias, exact)  # noqa: N806
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


def _copies(tap: Tap, name: str, parameter: Tensor, exact: Tensor) -> Tensor:
    copies = parameter.to(exact.dtype).expand(exact.shape[0], -1)
    return tap(name, copies, copies)


def _contributions(layer: nn.GroupNorm, sites: Mapping[str, Site]) -> Contributions:
    """From the normalised input; or the gradients of the copies, added up over views, axes ``BKC``."""
    if "output" in sites:
        return affine_grads(sites["output"], all_but_channels(sites["output"]))
    return {name: site.output_grads.sum(1) for name, site in sites.items()}


register_layer_rule(nn.GroupNorm, LayerRule(contributions=_contributions, forward=_forward))
