"""No noise, for comparison. Whatever is released this way is not private, and the event says so."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.errors import InvalidValue
from lehr.events import Gaussian
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, at_least_float32
from lehr.noise.fixed import FixedNoise
from lehr.rng import StepRandomness


@dataclass(frozen=True)
class NoNoise(FixedNoise):
    """The sum as it is: noise of multiplier zero, for which every accountant answers infinity."""

    def event(self, noise_multiplier: float = 0.0) -> Gaussian:
        """A release without noise."""
        if noise_multiplier != 0:
            raise InvalidValue("noise_multiplier", allowed="0 where there is no noise", given=noise_multiplier)
        return Gaussian(noise_multiplier=0.0)

    def release(
        self,
        private: PrivateSum,
        *,
        noise_multiplier: float = 0.0,
        randomness: StepRandomness,
        state: SlotState | None = None,
    ) -> ReleasedSum:
        """The sum, unchanged."""
        return ReleasedSum(
            values={name: value.to(at_least_float32(value.dtype)) for name, value in private.values.items()}
        )
