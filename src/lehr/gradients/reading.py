"""How a model is read: which places report, and whether all records are run together or each alone.

Records are run together where every trainable parameter has a rule and the record axis stays first in every layer.
Otherwise each record is run alone, all of them at once under ``vmap``; parameters without a rule are then given to each
record as a copy of its own, and the gradient of the copy is that record's gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.gradients.tape import Place
from lehr.interfaces import Site, Tensors


@dataclass(frozen=True)
class Manner:
    """How a model is run: which parameters each record has a copy of, whether each record is run alone, and whether
    images have their channels innermost, which is how convolutions and the kernels here read them fastest."""

    copied: tuple[str, ...] = ()
    is_record_by_record: bool = False
    is_channels_last: bool = True


@dataclass(frozen=True)
class Outlet:
    """What left one place when one record was run."""

    place: Place
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_channels_last: bool
    is_shared: bool = False  # one and the same for all records that are run together, such as what positions give

    @classmethod
    def of(cls, place: Place, output: Tensor, *, is_shared: bool = False) -> Outlet:
        is_channels_last = output.dim() == 4 and output.is_contiguous(memory_format=torch.channels_last)
        return cls(place, tuple(output.shape), output.dtype, is_channels_last, is_shared)


@dataclass(frozen=True)
class Reading:
    """The outlets, and how the model is run."""

    outlets: Mapping[str, Outlet]
    manner: Manner
    views: int = 1

    @property
    def shared(self) -> frozenset[str]:
        """The places that all records share."""
        return frozenset(key for key, outlet in self.outlets.items() if outlet.is_shared)

    @property
    def places(self) -> dict[str, Place]:
        return {key: outlet.place for key, outlet in self.outlets.items()}

    def taps(self, num_records: int, *, device: torch.device) -> dict[str, Tensor]:
        """Zeros in the shape and memory format of every output."""
        return {key: self._tap(outlet, num_records, device) for key, outlet in self.outlets.items()}

    def copies(self, parameters: Tensors, num_records: int) -> dict[str, Tensor]:
        """One for each record, which takes no memory."""
        return {name: parameters[name].expand(num_records, *parameters[name].shape) for name in self.manner.copied}

    def sites(self, inputs: Tensors, output_grads: Tensors, num_records: int) -> dict[str, Site]:
        """What passed every place, the record axis first and whatever belongs to one record behind it."""
        return {
            key: Site(
                self._by_record(self.for_each(key, inputs[key], num_records), num_records),
                self._by_record(output_grads[key], num_records),
            )
            for key in self.outlets
        }

    def _tap(self, outlet: Outlet, num_records: int, device: torch.device) -> Tensor:
        if self.manner.is_record_by_record:
            return torch.zeros((num_records, *outlet.shape), dtype=outlet.dtype, device=device)
        first, *rest = outlet.shape
        first = self.views if outlet.is_shared else first
        zeros = torch.zeros((num_records * first, *rest), dtype=outlet.dtype, device=device)
        return zeros.contiguous(memory_format=torch.channels_last) if outlet.is_channels_last else zeros

    def for_each(self, key: str, values: Tensor, num_records: int) -> Tensor:
        """The input of a place with the record axis first: what all records share is repeated for each."""
        is_shared = self.outlets[key].is_shared
        return values.expand(num_records * self.views, *values.shape[1:]) if is_shared else values

    def _by_record(self, values: Tensor, num_records: int) -> Tensor:
        if self.manner.is_record_by_record:
            return values
        return values.reshape(num_records, values.shape[0] // num_records, *values.shape[1:])
