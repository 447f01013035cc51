"""Isotropic noise: the Gaussian mechanism on the whole sum, taken as one vector."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lehr import validate
from lehr.events import Gaussian
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, at_least_float32
from lehr.noise.fixed import FixedNoise
from lehr.rng import StepRandomness

ROUNDING = 2**-22  # what sums in float64 may be off by, relative to the sensitivity: mechanism.proof.md


def with_rounding(sensitivity: float) -> float:
    """The sensitivity that noise is scaled from: with what rounding can add to how far a record moves a sum."""
    return validate.positive(sensitivity=sensitivity) * (1 + ROUNDING)


@dataclass(frozen=True)
class IsotropicNoise(FixedNoise):
    """Every coordinate gets independent Gaussian noise of standard deviation ``noise_multiplier * sensitivity``."""

    def event(self, noise_multiplier: float) -> Gaussian:
        """What a release does to the records."""
        return Gaussian(noise_multiplier=validate.positive(noise_multiplier=noise_multiplier))

    def release(
        self,
        private: PrivateSum,
        *,
        noise_multiplier: float,
        randomness: StepRandomness,
        state: SlotState | None = None,
        purpose: str = "noise",
    ) -> ReleasedSum:
        """The sum with its noise, once for everything that was drawn. It never looks at what the values are.

        Two sums of one step need two purposes, for the noise of one must not be that of the other.
        """
        noise_std = validate.positive(noise_multiplier=noise_multiplier) * with_rounding(private.sensitivity)
        released = randomness.normals(purpose, private.values)
        # In float64, where the noise is, and then rounded once.
        torch._foreach_mul_(list(released.values()), noise_std)
        torch._foreach_add_(list(released.values()), [private.values[name] for name in released])
        return ReleasedSum(
            values={name: value.to(at_least_float32(private.values[name].dtype)) for name, value in released.items()},
            noise_std=noise_std,
            noise_multiplier=noise_multiplier,
        )
