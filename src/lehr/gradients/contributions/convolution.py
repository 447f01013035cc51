"""The weight of a convolution: each record's gradient is a correlation of its input with its output gradient.

Two forms of the norm, and the cheaper is taken: the gradient is formed, squared and dropped, a few records at a time; or
(Bu et al. 2022, "Scalable and Efficient Training of Large Convolutional Neural Networks with Differential Privacy") the
products of positions among themselves are summed over the places of the filter, without ever unfolding the input.

Axes: N images (records times views), C input channels, O output channels, S and P places before and after.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lehr.gradients.kernels import convolution_norms, convolution_sum
from lehr.gradients.kernels.geometry import Geometry
from lehr.interfaces import at_least_float32


@dataclass(frozen=True)
class Convolved:
    """The inputs, already padded where the padding is not with zeros, and the gradients of the outputs."""

    inputs_NCS: Tensor  # noqa: N815
    output_grads_NOP: Tensor  # noqa: N815
    geometry: Geometry
    records: int

    def squared_norms(self) -> Tensor:
        if not self.records:
            return self.output_grads_NOP.new_zeros(0, dtype=at_least_float32(self.output_grads_NOP.dtype))
        return convolution_norms.squared_norms(
            self.inputs_NCS, self.output_grads_NOP, self.geometry, records=self.records
        )

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        if not self.records:
            shape = self.geometry.weight_shape(self.inputs_NCS, self.output_grads_NOP)
            return self.output_grads_NOP.new_zeros(shape, dtype=at_least_float32(self.output_grads_NOP.dtype))
        views = self.inputs_NCS.shape[0] // self.records
        return convolution_sum.weighted_sum(
            self.inputs_NCS,
            self.output_grads_NOP,
            self.geometry,
            weights_N=weights_B.repeat_interleave(views) if views > 1 else weights_B,
            counted_N=counted_B.repeat_interleave(views) if views > 1 else counted_B,
        )

    def materialised(self) -> Tensor:
        shape = self.geometry.weight_shape(self.inputs_NCS, self.output_grads_NOP)
        return convolution_norms.formed(
            self.inputs_NCS, self.output_grads_NOP, self.geometry, records=self.records
        ).reshape(self.records, *shape)
