"""Candidates whose energies and uniform number are chosen."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from lehr.interfaces import ReleasedSum

NOTHING_RELEASED = ReleasedSum(values={})


def released(*values: float, noise_multiplier: float = 2.0) -> ReleasedSum:
    """A released sum of one parameter."""
    return ReleasedSum(values={"weight": torch.tensor(values)}, noise_std=1.0, noise_multiplier=noise_multiplier)


@dataclass(frozen=True)
class Proposed:
    """From one energy to another, at the step of size one; ``elsewhere`` has those of other step sizes.

    A ``drawn`` of None must not be asked for.
    """

    now: float
    proposed: float
    drawn: float | None = 0.5
    elsewhere: Mapping[float, float] = field(default_factory=dict)

    def change(self, step_scale: float = 1.0) -> float:
        proposed = self._at(step_scale)
        if not math.isfinite(proposed):
            return math.inf
        if not math.isfinite(self.now):
            return -math.inf
        return max(-sys.float_info.max, min(proposed - self.now, sys.float_info.max))

    def best(self, step_scales: Sequence[float]) -> int:
        return min(range(len(step_scales)), key=lambda index: self._at(step_scales[index]))

    def uniform(self) -> float:
        if self.drawn is None:
            raise AssertionError("no uniform number is needed")
        return self.drawn

    def _at(self, step_scale: float) -> float:
        return {0.0: self.now, 1.0: self.proposed, **self.elsewhere}[step_scale]
