"""What the normalisations share: statistics in float32, the input's memory format kept, a gain and a shift.

What a rule here hands to its tap is the normalised input, so that the gradients of gain and shift are plain sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lehr.interfaces import Contributions, Site, Tap, at_least_float32


def standardised(values: Tensor, axes: Sequence[int], *, eps: float) -> Tensor:
    """Mean zero and variance one over the axes, in float32 or better; made of steps that leave the strides alone."""
    exact = values.to(at_least_float32(values.dtype))
    if not exact.numel():  # an empty batch has no statistics, and asking for them warns
        return exact
    variance, mean = torch.var_mean(exact, dim=tuple(axes), correction=0, keepdim=True)
    return (exact - mean) * torch.rsqrt(variance + eps)


def affine(tap: Tap, normalised: Tensor, *, gain: Tensor | None, shift: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Gain and shift, already shaped to be broadcast, and the tap; without either there is nothing to listen to."""
    if gain is None and shift is None:
        return normalised.to(dtype)
    outputs = normalised if gain is None else normalised * gain
    outputs = outputs if shift is None else outputs + shift
    return tap("output", normalised, outputs.to(dtype))


def per_channel(parameter: Tensor | None, values: Tensor) -> Tensor | None:
    """A parameter with one number per channel, shaped to meet ``values`` whose axis 1 has the channels."""
    return None if parameter is None else parameter.reshape(-1, *(1 for _ in values.shape[2:]))


def affine_grads(site: Site, summed: Sequence[int]) -> Contributions:
    """The gradients of gain and shift: sums over every axis that they were broadcast along."""
    output_grads = site.output_grads.to(site.inputs.dtype)
    axes = tuple(summed)
    return {"weight": (output_grads * site.inputs).sum(axes), "bias": output_grads.sum(axes)}


def all_but_channels(site: Site) -> tuple[int, ...]:
    """Views and space, where a site's axes are ``BKC...``."""
    return (1, *range(3, site.inputs.dim()))
