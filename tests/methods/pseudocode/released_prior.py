"""ADADP's prior from what was released: in place of line 23 of the paper's box, and of line 7.

The square of a released mean has the expectation g^2 + v, with v the known variance of its noise, so square - v is
unbiased. Its running mean starts at zero and is divided by what it has reached of the truth. Around that, each
coordinate has a known uncertainty: the variance of square - v is 2 v^2 + 4 v g^2. Within each tensor the coordinates
are drawn towards their mean by the share of their spread that this explains, and none is below ``least_share`` of the
mean. Nothing is said while the mean over all coordinates is within ``significance`` standard errors of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.methods.pseudocode.trace import Places, Vector


@dataclass
class ReleasedPrior:
    """The running means over all parameters, of which each tensor is given by its places."""

    tensors: Sequence[Places]
    memory: float = 0.99
    least_share: float = 0.1
    significance: float = 3.0
    steps: int = 0

    def __post_init__(self) -> None:
        size = sum(len(tensor) for tensor in self.tensors)
        self.square, self.uncertainty = np.zeros(size), np.zeros(size)

    def learn(self, *, raw: Vector, g_tilde: Vector, variance: Vector) -> None:
        """From a released mean and the variance of the noise in it; the raw one is not looked at."""
        signal = np.maximum(self.square / self._reached(max(1, self.steps)), 0)
        keep = self.memory
        self.square = keep * self.square + (1 - keep) * (g_tilde**2 - variance)
        of_one = 2 * variance**2 + 4 * variance * signal
        self.uncertainty = keep**2 * self.uncertainty + (1 - keep) ** 2 * of_one
        self.steps += 1

    def squares(self) -> Vector | None:
        """What each squared gradient is expected to be; nothing while nothing is known."""
        if self.steps == 0:
            return None
        reached = self._reached(self.steps)
        square, uncertainty = self.square / reached, self.uncertainty / reached**2
        if square.mean() <= self.significance * np.sqrt(uncertainty.sum()) / len(square):
            return None
        result = np.empty_like(square)
        for tensor in self.tensors:
            result[tensor] = self._shrunk(square[tensor], uncertainty[tensor], whole=square.mean())
        return result

    def _shrunk(self, square: Vector, uncertainty: Vector, *, whole: float) -> Vector:
        mean = max(square.mean(), self.least_share**2 * whole)
        spread = square.var()
        kept = min(max(1 - uncertainty.mean() / spread, 0), 1) if spread > 0 else 0.0
        return np.asarray(np.maximum(mean + kept * (square - mean), self.least_share * mean))

    def _reached(self, steps: int) -> float:
        return float(1 - self.memory**steps)
