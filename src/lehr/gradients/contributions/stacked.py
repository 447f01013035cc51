"""Blocks of rows of one parameter that are used apart, such as the query, key and value parts of an attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.interfaces import Contribution


@dataclass(frozen=True)
class Stacked:
    """The blocks in order, one above the other."""

    blocks: tuple[Contribution, ...]

    def squared_norms(self) -> Tensor:
        return torch.stack([block.squared_norms() for block in self.blocks]).sum(0)

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
        return torch.cat([block.weighted_sum(weights_B, counted_B) for block in self.blocks])

    def materialised(self) -> Tensor:
        return torch.cat([block.materialised() for block in self.blocks], dim=1)
