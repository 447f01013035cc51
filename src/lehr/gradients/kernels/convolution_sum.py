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
    # A sum that is rounded to bfloat16 moves by more than one record's worth, so the factors are widened first; and on
    # a CPU to float64: see products.records_at_once.
    dtype = at_least_float32(inputs_NCS.dtype) if inputs_NCS.is_cuda else torch.float64
    factors = (inputs_NCS.to(dtype), output_grads_NOP.to(dtype))
    add_up = _unrounded_sum if inputs_NCS.is_cuda else _plain_sum
    summed: Tensor = add_up(*factors, *geometry.numbers(), geometry.groups)
    return summed


@torch.library.custom_op("lehr::convolution_sum", mutates_args=())
def _unrounded_sum(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Without TF32, which torch uses for convolutions unless told otherwise: a record can be made to round one way."""
    as_they_are = {"enabled": None, "benchmark": None, "benchmark_limit": None, "deterministic": None}
    with torch.backends.cudnn.flags(allow_tf32=False, fp32_precision=None, **as_they_are):
        return _plain_sum(inputs, output_grads, kernel, stride, padding, dilation, groups).contiguous()


@_unrounded_sum.register_fake
def _(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    return inputs.new_empty(output_grads.shape[1], inputs.shape[1] // groups, *kernel)


def _plain_sum(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    weight = inputs.new_empty(1).expand(output_grads.shape[1], inputs.shape[1] // groups, *kernel)
    settings = (stride, padding, dilation, False, [0] * len(kernel), groups)
    summed: Tensor
    _, summed, _ = torch.ops.aten.convolution_backward(
        output_grads, inputs, weight, None, *settings, (False, True, False)
    )
    return summed
