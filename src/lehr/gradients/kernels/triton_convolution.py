"""Where the Triton kernels for convolutions apply, and how they are called inside a compiled step.

The kernels themselves are in ``triton_kernels``, which needs Triton; this file does not, so that it loads anywhere.
"""

from __future__ import annotations

from importlib.util import find_spec
from math import prod

import torch
from torch import Tensor

from lehr.gradients.kernels.geometry import Geometry

_HAS_TRITON = find_spec("triton") is not None


def takes(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry) -> bool:  # noqa: N803
    """Whether the kernels know this convolution: two-dimensional, ungrouped, bfloat16, on a GPU with Triton."""
    return (
        _HAS_TRITON
        and inputs_NCS.is_cuda
        and inputs_NCS.dtype == output_grads_NOP.dtype == torch.bfloat16
        and inputs_NCS.dim() == 4
        and geometry.groups == 1
    )


def squared_norms(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry, *, records: int) -> Tensor:  # noqa: N803
    """As ``convolution_norms.squared_norms``."""
    norms: Tensor = _squared_norms(inputs_NCS, output_grads_NOP, *geometry.numbers(), records)
    return norms


def formed(
    inputs_NCS: Tensor,  # noqa: N803
    output_grads_NOP: Tensor,  # noqa: N803
    geometry: Geometry,
    *,
    records: int,
) -> tuple[Tensor, Tensor]:
    """As ``convolution_norms.formed_with_norms``."""
    grads_and_norms: tuple[Tensor, Tensor] = _formed(inputs_NCS, output_grads_NOP, *geometry.numbers(), records)
    return grads_and_norms


def weighted_sum(
    inputs_NCS: Tensor,  # noqa: N803
    output_grads_NOP: Tensor,  # noqa: N803
    geometry: Geometry,
    *,
    weights_N: Tensor,  # noqa: N803
    counted_N: Tensor,  # noqa: N803
) -> Tensor:
    """As ``convolution_sum.weighted_sum``."""
    # A weight that is not a number marks an image that is not counted; the kernel then does not load it at all.
    marked = torch.where(counted_N, weights_N.float(), torch.nan)
    parts: Tensor = _weighted_parts(inputs_NCS, output_grads_NOP, marked, *geometry.numbers())
    outputs, channels = output_grads_NOP.shape[1], inputs_NCS.shape[1]
    return parts.sum(0, dtype=torch.float64).reshape(outputs, *geometry.kernel, channels).permute(0, 3, 1, 2)


@torch.library.custom_op("lehr::convolution_norms", mutates_args=())
def _squared_norms(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    records: int,
) -> Tensor:
    from lehr.gradients.kernels import triton_kernels

    return triton_kernels.squared_norms(inputs, output_grads, kernel, stride, padding, dilation, records)


@_squared_norms.register_fake
def _(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    records: int,
) -> Tensor:
    return inputs.new_empty(records, dtype=torch.float32)


@torch.library.custom_op("lehr::formed_convolution", mutates_args=())
def _formed(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    records: int,
) -> tuple[Tensor, Tensor]:
    from lehr.gradients.kernels import triton_kernels

    return triton_kernels.formed(inputs, output_grads, kernel, stride, padding, dilation, records)


@_formed.register_fake
def _(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    records: int,
) -> tuple[Tensor, Tensor]:
    columns = prod(kernel) * inputs.shape[1]
    grads = inputs.new_empty(records, output_grads.shape[1], columns, dtype=torch.float32)
    return grads, inputs.new_empty(records, dtype=torch.float32)


def splits(inputs: Tensor, output_grads: Tensor, kernel: list[int]) -> int:
    """Into how many partial sums the images are divided, so that a GPU is filled; public shape alone decides."""
    from lehr.gradients.kernels import triton_kernels

    places = prod(output_grads.shape[2:])
    return triton_kernels.splits(inputs.shape[0], inputs.shape[1], output_grads.shape[1], prod(kernel), places)


@torch.library.custom_op("lehr::weighted_convolution_parts", mutates_args=())
def _weighted_parts(
    inputs: Tensor,
    output_grads: Tensor,
    weights: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    from lehr.gradients.kernels import triton_kernels

    return triton_kernels.weighted_parts(inputs, output_grads, weights, kernel, stride, padding, dilation)


@_weighted_parts.register_fake
def _(
    inputs: Tensor,
    output_grads: Tensor,
    weights: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    width = prod(kernel) * inputs.shape[1]
    return inputs.new_empty(splits(inputs, output_grads, kernel), output_grads.shape[1], width, dtype=torch.float32)
