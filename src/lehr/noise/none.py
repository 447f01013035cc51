"""No noise, for comparison. Whatever is released this way is not private, and the event says so."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.events import NonPrivate
from lehr.interfaces import PrivateSum, ReleasedSum, at_least_float32
from lehr.rng import StepRandomness


@dataclass(frozen=True)
class NoNoise:
    """The sum as it is. The noise multiplier is asked for, as everywhere, and makes no difference."""

    def event(self, noise_multiplier: float = 0.0) -> NonPrivate:
        """Every accountant answers infinity."""
        return NonPrivate("gradients without noise")

    def release(self, private: PrivateSum, *, noise_multiplier: float = 0.0, randomness: StepRandomness) -> ReleasedSum:
        """The sum, unchanged."""
        return ReleasedSum(
            values={name: value.to(at_least_float32(value.dtype)) for name, value in private.values.items()}
        )
