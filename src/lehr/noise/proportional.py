"""ADADP's noise: every coordinate gets noise in proportion to its own bound.

Xu et al. (2020). With m coordinates that can move, bounds s_i and multiplier σ, the noise of coordinate i has standard
deviation σ √m s_i. A sum with one bound for all of it, as before ADADP knows the coordinates, gets isotropic noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lehr.interfaces import PrivateSum, ReleasedSum, SlotState
from lehr.noise.isotropic import IsotropicNoise
from lehr.noise.shaped import bounds_of, shaped_release
from lehr.rng import StepRandomness


@dataclass(frozen=True)
class ProportionalNoise(IsotropicNoise):
    """Noise in proportion to the bounds of the coordinates, where there are such bounds."""

    needs_bounds: ClassVar[bool] = True

    def release(
        self,
        private: PrivateSum,
        *,
        noise_multiplier: float,
        randomness: StepRandomness,
        state: SlotState | None = None,
        purpose: str = "noise",
    ) -> ReleasedSum:
        if private.bounds is None:
            return super().release(
                private, noise_multiplier=noise_multiplier, randomness=randomness, state=state, purpose=purpose
            )
        return shaped_release(
            private, bounds_of(private), noise_multiplier=noise_multiplier, randomness=randomness, purpose=purpose
        )
