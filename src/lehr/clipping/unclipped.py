"""No clip: gradients as they are, for comparison without privacy. One record can do anything to the sum."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lehr.clipping.fixed import FixedRule
from lehr.interfaces import PrivateSum, RecordGradients


@dataclass(frozen=True)
class Unclipped(FixedRule):
    """Every record counts in full. The sensitivity is infinite, so that no noise can be scaled by it."""

    @property
    def sensitivity(self) -> float:
        return math.inf

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        values = gradients.weighted_sum(torch.ones_like(gradients.norms()))
        return PrivateSum(values=values, sensitivity=self.sensitivity)
