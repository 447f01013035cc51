"""Convolutions to try kernels on, each with the gradients that torch finds for one record after another.

Axes: B records, K views of one record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import grad

from lehr.gradients.convolutions import Convolved, Geometry

_WEIGHT_GRADS = {1: grad.conv1d_weight, 2: grad.conv2d_weight, 3: grad.conv3d_weight}


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """The sizes of a convolution and of the batch that it is given."""

    channels: int
    outputs: int
    sizes: tuple[int, ...]
    kernel: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    records: int = 3
    views: int = 1

    @property
    def geometry(self) -> Geometry:
        numbers = (self.kernel, self.stride, self.padding, self.dilation)
        kernel, stride, padding, dilation = ((number,) * len(self.sizes) for number in numbers)
        return Geometry(kernel, stride, padding, dilation, self.groups)

    @property
    def places(self) -> tuple[int, ...]:
        reach = self.dilation * (self.kernel - 1)
        return tuple((size + 2 * self.padding - reach - 1) // self.stride + 1 for size in self.sizes)

    def batch(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """Inputs and output gradients, all views of all records, channels last where they are images."""
        generator = torch.Generator().manual_seed(0)
        shapes = ((self.channels, *self.sizes), (self.outputs, *self.places))
        inputs, output_grads = (
            torch.randn(self.records * self.views, *shape, generator=generator).to(device, dtype) for shape in shapes
        )
        if inputs.dim() != 4:
            return inputs, output_grads
        last = torch.channels_last
        return inputs.contiguous(memory_format=last), output_grads.contiguous(memory_format=last)

    def part(self, inputs: Tensor, output_grads: Tensor) -> Convolved:
        return Convolved(inputs, output_grads, self.geometry, self.records)

    def grads_by_loop(self, inputs: Tensor, output_grads: Tensor) -> Tensor:
        """Every record's gradient of the weight, ``grads_B...``, in float64."""
        geometry = self.geometry
        shape = list(geometry.weight_shape(inputs, output_grads))
        before, after = (
            values.double().cpu().reshape(self.records, self.views, *values.shape[1:])
            for values in (inputs, output_grads)
        )
        numbers = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
        weight_grad: Any = _WEIGHT_GRADS[len(self.sizes)]
        return torch.stack([weight_grad(before[at], shape, after[at], *numbers) for at in range(self.records)])


SHAPES = {
    "sequence": Convolution(channels=4, outputs=6, sizes=(9,), kernel=3, padding=1),
    "sequence, groups": Convolution(channels=4, outputs=6, sizes=(9,), kernel=2, groups=2, stride=2),
    "image": Convolution(channels=3, outputs=5, sizes=(7, 6), kernel=3, padding=1),
    "image, stride, dilation, padding": Convolution(
        channels=4, outputs=6, sizes=(9, 9), kernel=3, stride=2, padding=2, dilation=2
    ),
    "image, depthwise": Convolution(channels=4, outputs=8, sizes=(6, 6), kernel=3, groups=4),
    "image, views, groups": Convolution(channels=4, outputs=6, sizes=(6, 5), kernel=2, groups=2, views=3),
    "image, filter of 1": Convolution(channels=3, outputs=5, sizes=(4, 4), kernel=1, stride=2),
    "image, one place": Convolution(channels=8, outputs=9, sizes=(3, 3), kernel=3),
    "volume": Convolution(channels=2, outputs=4, sizes=(4, 5, 3), kernel=2, padding=1, views=2),
    "volume, groups": Convolution(channels=4, outputs=4, sizes=(4, 3, 3), kernel=2, groups=2, dilation=2),
    "one record": Convolution(channels=3, outputs=5, sizes=(5, 5), kernel=3, records=1),
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


def in_order_of_columns(grads: Tensor) -> Tensor:
    """Gradients ``[..., O, C, filter]`` in the order ``[..., O, filter, C]`` in which kernels write them."""
    filters_last = grads.flatten(3)
    return filters_last.transpose(2, 3)
