"""A parameter that no record used: its gradients are zero."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Size, Tensor

from lehr.interfaces import at_least_float32


@dataclass(frozen=True)
class Unused:
    """The shape of the parameter, the number of records, and any tensor on the same device and of the same type."""

    shape: Size
    records: int
    like: Tensor

    def squared_norms(self) -> Tensor:
        return self._zeros(self.records)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        return self._zeros(*self.shape)

    def materialised(self) -> Tensor:
        return self._zeros(self.records, *self.shape)

    def _zeros(self, *shape: int) -> Tensor:
        return self.like.new_zeros(shape, dtype=at_least_float32(self.like.dtype))
