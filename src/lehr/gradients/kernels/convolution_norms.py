"""The squared norm of every record's gradient of a convolution's weight.

Axes: B records, N images (records times views), C input channels, O output channels, S and P places before and after,
F places of the filter.
"""

from __future__ import annotations

from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from lehr.gradients.kernels import forming, triton_convolution
from lehr.gradients.kernels.geometry import Geometry
from lehr.gradients.products import batched_product, rounding_of, sum_of_squares
from lehr.interfaces import at_least_float32

# On a GPU, gradients that take fewer bytes than this are kept whatever else; with more places than this they are kept
# where they take about as many bytes as the images, or fewer.
_LITTLE_BYTES = 32 * 2**20
_MANY_PLACES = 512


def squared_norms(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry, *, records: int) -> Tensor:  # noqa: N803
    """Per record, in float32 or better, by the cheapest of the ways there are on this device."""
    if triton_convolution.takes(inputs_NCS, output_grads_NOP, geometry):
        return triton_convolution.squared_norms(inputs_NCS, output_grads_NOP, geometry, records=records)
    if gram_is_cheaper(inputs_NCS, output_grads_NOP, geometry, records=records):
        return by_gram(inputs_NCS, output_grads_NOP, geometry, records=records)
    return forming.squared_norms(inputs_NCS, output_grads_NOP, geometry, records=records)


def formed_with_norms(
    inputs_NCS: Tensor,  # noqa: N803
    output_grads_NOP: Tensor,  # noqa: N803
    geometry: Geometry,
    *,
    records: int,
) -> tuple[Tensor, Tensor]:
    """Every record's gradient, ``grads_BOFC``, and its squared norm."""
    if triton_convolution.takes(inputs_NCS, output_grads_NOP, geometry):
        grads, norms = triton_convolution.formed(inputs_NCS, output_grads_NOP, geometry, records=records)
    else:
        grads = forming.formed(inputs_NCS, output_grads_NOP, geometry, records=records)
        norms = sum_of_squares(grads)
    return grads.reshape(records, output_grads_NOP.shape[1], prod(geometry.kernel), -1), norms


def keeping_pays(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry, *, records: int) -> bool:  # noqa: N803
    """Whether reading every record's gradient again costs less than forming their sum; all of it is public shape.

    On a GPU that is so where many places make one small gradient, and where the gradients are no larger than the
    images that need not be kept then; on a CPU wherever they had to be formed for their norms anyway.
    """
    views = inputs_NCS.shape[0] // records
    kept = at_least_float32(inputs_NCS.dtype).itemsize * prod(geometry.weight_shape(inputs_NCS, output_grads_NOP))
    held = inputs_NCS.element_size() * views * (inputs_NCS[0].numel() + output_grads_NOP[0].numel())
    if not inputs_NCS.is_cuda:
        return kept <= 2 * held and not gram_is_cheaper(inputs_NCS, output_grads_NOP, geometry, records=records)
    many_places = views * prod(output_grads_NOP.shape[2:]) >= _MANY_PLACES
    return kept * records <= _LITTLE_BYTES or (many_places and 4 * kept <= 5 * held)


def gram_is_cheaper(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry, *, records: int) -> bool:  # noqa: N803
    """Whether the products of places take fewer multiplications than forming the gradient; it is all public shape."""
    views = inputs_NCS.shape[0] // records
    before = views * prod([s + 2 * p for s, p in zip(inputs_NCS.shape[2:], geometry.padding, strict=True)])
    after = views * prod(output_grads_NOP.shape[2:])
    channels, outputs, places = inputs_NCS.shape[1], output_grads_NOP.shape[1], prod(geometry.kernel)
    by_places = before**2 * channels + after**2 * (outputs + places * geometry.groups)
    return by_places < after * channels * outputs * places // geometry.groups


def by_gram(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry, *, records: int) -> Tensor:  # noqa: N803
    """From the products of places among themselves, added up over the places of the filter."""
    padded = _padded(inputs_NCS, geometry)
    before = _places_first(padded, records=records, groups=geometry.groups)
    after = _places_first(output_grads_NOP, records=records, groups=geometry.groups)
    views = inputs_NCS.shape[0] // records
    sizes = (views, *padded.shape[2:])
    gram_before = batched_product(before, before.transpose(1, 2)).reshape(-1, *sizes, *sizes)
    sizes = (views, *output_grads_NOP.shape[2:])
    gram_after = batched_product(after, after.transpose(1, 2)).reshape(-1, *sizes, *sizes)
    met = torch.zeros_like(gram_after)
    for place in product(*map(range, geometry.kernel)):
        met = met + gram_before[_met(place, sizes, geometry)]
    places = after.shape[1]
    squares = (gram_after * met).reshape(records, -1).sum(1).clamp_min(0)
    own = [gram.reshape(-1, places, places).diagonal(dim1=1, dim2=2) for gram in (gram_after, met)]
    return squares + rounding_of((own[0] * own[1]).reshape(records, -1).sum(1))


def _padded(inputs: Tensor, geometry: Geometry) -> Tensor:
    if not any(geometry.padding):
        return inputs
    return functional.pad(inputs, [amount for amount in reversed(geometry.padding) for _ in range(2)])


def _places_first(values_NCS: Tensor, *, records: int, groups: int) -> Tensor:  # noqa: N803
    """``[B * groups, views * places, channels of one group]``."""
    images, channels = values_NCS.shape[:2]
    split = values_NCS.reshape(records, images // records, groups, channels // groups, -1)
    return split.permute(0, 2, 1, 4, 3).reshape(records * groups, -1, channels // groups)


def _met(place: tuple[int, ...], sizes: tuple[int, ...], geometry: Geometry) -> tuple[slice, ...]:
    """The part of the products before the convolution that this place of the filter meets."""
    across = tuple(
        slice(first * dilation, first * dilation + stride * (size - 1) + 1, stride)
        for first, dilation, stride, size in zip(place, geometry.dilation, geometry.stride, sizes[1:], strict=True)
    )
    every = slice(None)
    return (every, every, *across, every, *across)
