"""The weight of a convolution: each record's gradient is a correlation of its input with its output gradient.

Two forms of the norm, and the cheaper is taken: the gradient is formed, squared and dropped, a few records at a time;
or (Bu et al. 2022, "Scalable and Efficient Training of Large Convolutional Neural Networks with Differential Privacy")
the products of positions among themselves are summed over the places of the filter, without ever unfolding the input.

Axes: N images (records times views), C input channels, O output channels, S and P places before and after.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.kernels import convolution_norms, convolution_sum
from lehr.gradients.kernels.geometry import Geometry
from lehr.gradients.products import records_at_once, rounding_of_sum, squares_at_most, sum_over_records
from lehr.interfaces import at_least_float32


@dataclass(eq=False)
class Convolved:
    """The inputs, already padded where the padding is not with zeros, and the gradients of the outputs.

    Where that is cheaper, every record's gradient is kept from when its norm is taken until the sum is.
    """

    inputs_NCS: Tensor  # noqa: N815
    output_grads_NOP: Tensor  # noqa: N815
    geometry: Geometry
    records: int
    _kept: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.geometry.weight_shape(self.inputs_NCS, self.output_grads_NOP)

    @property
    def views(self) -> int:
        return self.inputs_NCS.shape[0] // max(1, self.records)

    def squared_norms(self) -> Tensor:
        if not self._has_anything():
            return self._zeros(self.records)
        if self._keeping_pays():
            return self._formed()[1]
        squared_B = convolution_norms.squared_norms(  # noqa: N806
            self.inputs_NCS, self.output_grads_NOP, self.geometry, records=self.records
        )
        return squared_B + self._lost()

    def _lost(self) -> Tensor:
        """What rounding and underflow can hide from a norm that is had apart from the sum (Cauchy and Schwarz)."""
        before_B = prod(self.geometry.kernel) * self._squares(self.inputs_NCS)  # noqa: N806
        after_B = self._squares(self.output_grads_NOP)  # noqa: N806
        tiny = torch.finfo(before_B.dtype).tiny
        before, after = (tiny * values[0].numel() * self.views for values in (self.inputs_NCS, self.output_grads_NOP))
        lengths_B = before_B.sqrt() * after_B.sqrt()  # noqa: N806
        rounding_B = rounding_of_sum(lengths_B, self.output_grads_NOP.dtype, self.output_grads_NOP.device)  # noqa: N806
        return after * before_B + before * after_B + rounding_B

    def _squares(self, values_NCS: Tensor) -> Tensor:  # noqa: N803
        """Of each record. Image by image first, since that leaves the memory format alone."""
        of_images = squares_at_most(values_NCS, range(1, values_NCS.dim()))
        return of_images.reshape(self.records, self.views).sum(1)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        if not self._has_anything():
            return self._zeros(*self.shape)
        if self._keeping_pays():
            return self._channels_first(Materialised(self._formed()[0]).weighted_sum(weights_B, counted_B))
        places = self.views * prod(self.output_grads_NOP.shape[2:])
        is_whole = self.inputs_NCS.is_cuda and self.inputs_NCS.dtype is not torch.float64
        at_once = self.records if is_whole else records_at_once(self.inputs_NCS.dtype, positions=places)

        def sum_of(some: slice) -> Tensor:
            part = self.taken(some.start, min(some.stop, self.records))
            weights_N, counted_N = (values[some].repeat_interleave(self.views) for values in (weights_B, counted_B))  # noqa: N806
            return convolution_sum.weighted_sum(
                part.inputs_NCS, part.output_grads_NOP, self.geometry, weights_N=weights_N, counted_N=counted_N
            )

        return sum_over_records(self.records, sum_of, at_once=at_once)

    def materialised(self) -> Tensor:
        if not self._has_anything():
            return self._zeros(self.records, *self.shape)
        return self._channels_first(self._formed()[0])

    def taken(self, first: int, last: int) -> Convolved:
        images = slice(first * self.views, last * self.views)
        return Convolved(self.inputs_NCS[images], self.output_grads_NOP[images], self.geometry, last - first)

    def _keeping_pays(self) -> bool:
        return convolution_norms.keeping_pays(
            self.inputs_NCS, self.output_grads_NOP, self.geometry, records=self.records
        )

    def _formed(self) -> tuple[Tensor, Tensor]:
        if self._kept is None:
            self._kept = convolution_norms.formed_with_norms(
                self.inputs_NCS, self.output_grads_NOP, self.geometry, records=self.records
            )
        return self._kept

    def _channels_first(self, grads_OFC: Tensor) -> Tensor:  # noqa: N803
        channels_first = grads_OFC.movedim(-1, -2)
        return channels_first.reshape(*channels_first.shape[:-1], *self.geometry.kernel)

    def _has_anything(self) -> bool:
        return self.output_grads_NOP.numel() > 0

    def _zeros(self, *shape: int) -> Tensor:
        return self.output_grads_NOP.new_zeros(shape, dtype=at_least_float32(self.output_grads_NOP.dtype))
