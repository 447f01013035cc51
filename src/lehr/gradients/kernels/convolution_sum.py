"""The sum over records of their gradients of a convolution's weight, each scaled by its weight.

Axes: N images (records times views), C input channels, O output channels, S and P places before and after.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lehr.gradients.kernels import triton_convolution
from lehr.gradients.kernels.geometry import Geometry
from lehr.gradients.products import keep, weigh
from lehr.interfaces import at_least_float32


def weighted_sum(
    inputs_NCS: Tensor,  # noqa: N803
    output_grads_NOP: Tensor,  # noqa: N803
    geometry: Geometry,
    *,
    weights_N: Tensor,  # noqa: N803
    counted_N: Tensor,  # noqa: N803
) -> Tensor:
    """In float32 or better. An image that is not counted adds exactly nothing, whatever it holds."""
    if triton_convolution.takes(inputs_NCS, output_grads_NOP, geometry):
        return triton_convolution.weighted_sum(
            inputs_NCS, output_grads_NOP, geometry, weights_N=weights_N, counted_N=counted_N
        )
    scaled = weigh(output_grads_NOP, weights_N, counted_N)
    return _sum(keep(inputs_NCS, counted_N), scaled, geometry)


def _sum(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry) -> Tensor:  # noqa: N803
    # A sum that is rounded to bfloat16 moves by more than one record's worth, so the factors are widened first.
    dtype = at_least_float32(inputs_NCS.dtype)
    inputs_NCS, output_grads_NOP = inputs_NCS.to(dtype), output_grads_NOP.to(dtype)  # noqa: N806
    weight = inputs_NCS.new_empty(1).expand(geometry.weight_shape(inputs_NCS, output_grads_NOP))
    summed: Tensor
    _, summed, _ = torch.ops.aten.convolution_backward(
        output_grads_NOP,
        inputs_NCS,
        weight,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0,) * len(geometry.stride),
        geometry.groups,
        (False, True, False),
    )
    return summed
