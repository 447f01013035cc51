"""Isotropic noise: the Gaussian mechanism on the whole sum, taken as one vector."""

from __future__ import annotations

from dataclasses import dataclass

from lehr import validate
from lehr.events import Gaussian
from lehr.interfaces import PrivateSum, ReleasedSum, at_least_float32
from lehr.rng import StepRandomness


@dataclass(frozen=True)
class IsotropicNoise:
    """Every coordinate gets independent Gaussian noise of standard deviation ``noise_multiplier * sensitivity``."""

    def event(self, noise_multiplier: float) -> Gaussian:
        """What a release does to the records."""
        return Gaussian(noise_multiplier=validate.positive(noise_multiplier=noise_multiplier))

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, purpose: str = "noise"
    ) -> ReleasedSum:
        """The sum with its noise, once for everything that was drawn. It never looks at what the values are.

        Two sums of one step need two purposes, for the noise of one must not be that of the other.
        """
        noise_std = validate.positive(noise_multiplier=noise_multiplier) * validate.positive(
            sensitivity=private.sensitivity
        )
        noise = randomness.normals(purpose, private.values)
        return ReleasedSum(
            values={
                # In float64, where the noise is, and then rounded once.
                name: noise[name].mul_(noise_std).add_(value).to(at_least_float32(value.dtype))
                for name, value in private.values.items()
            }
        )
