"""The numbers that say which input places a filter of a convolution meets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """One entry per spatial axis; ``padding`` is with zeros."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def weight_shape(self, inputs_NCS: Tensor, output_grads_NOP: Tensor) -> tuple[int, ...]:  # noqa: N803
        """The shape of the weight: output channels, input channels of one group, filter."""
        return (output_grads_NOP.shape[1], inputs_NCS.shape[1] // self.groups, *self.kernel)

    def numbers(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Filter, stride, padding and dilation as lists, which is how torch's operators take them."""
        return list(self.kernel), list(self.stride), list(self.padding), list(self.dilation)
