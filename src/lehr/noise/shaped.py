"""Gaussian noise with a standard deviation for each coordinate, none of which may be too small for the bounds.

A record moves coordinate i by at most its bound s_i. With noise of standard deviation σ_i there, the release is a
Gaussian mechanism of noise multiplier σ wherever Σ s_i² / σ_i² ≤ 1 / σ² (``shaped.proof.md``). Whatever shape is asked
for is scaled to meet that exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, Tensors, at_least_float32
from lehr.noise.isotropic import IsotropicNoise
from lehr.rng import StepRandomness


@dataclass(frozen=True)
class ShapedNoise(IsotropicNoise, ABC):
    """Noise whose shape follows the bounds of coordinates, wherever a sum has such bounds; otherwise isotropic."""

    needs_bounds: ClassVar[bool] = True

    @abstractmethod
    def shape(self, bounds: Tensors, state: SlotState) -> Tensors:
        """What the standard deviations are to be in proportion to: from public values only."""

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
        shape = self.shape(bounds_of(private), state or {})
        return shaped_release(private, shape, noise_multiplier=noise_multiplier, randomness=randomness, purpose=purpose)


def shaped_release(
    private: PrivateSum, shape: Tensors, *, noise_multiplier: float, randomness: StepRandomness, purpose: str = "noise"
) -> ReleasedSum:
    """The sum with noise in proportion to ``shape``, scaled so that it is worth ``noise_multiplier``.

    Where a bound is zero, nobody can move the coordinate, and its noise may be zero as well.
    """
    noise_std = fitted(bounds_of(private), shape, noise_multiplier=noise_multiplier)
    drawn = randomness.normals(purpose, private.values)
    values = {
        name: (private.values[name] + noise_std[name] * drawn[name]).to(at_least_float32(private.values[name].dtype))
        for name in private.values
    }
    return ReleasedSum(values=values, noise_std=noise_std, noise_multiplier=noise_multiplier)


def bounds_of(private: PrivateSum) -> dict[str, Tensor]:
    """The bounds of the coordinates, on the device of the values; an error where there is one for the whole sum."""
    if private.bounds is None:
        allowed = "one whose clip bounds every coordinate: noise of another shape does not cover a bound on the norm"
        raise InvalidValue("private", allowed=allowed, given=f"a sum of sensitivity {private.sensitivity:g}")
    return {name: bound.double().to(private.values[name].device) for name, bound in private.bounds.items()}


def fitted(bounds: Tensors, shape: Tensors, *, noise_multiplier: float) -> dict[str, Tensor]:
    """The shape, scaled so that the squares of bounds over standard deviations add up to 1 / noise_multiplier²."""
    validate.positive(noise_multiplier=noise_multiplier)
    # Over its largest number, for the square of what is far from one may leave the range of float64.
    largest = _largest(_checked("shape", shape))
    parts = {name: shape[name].double() / largest for name in bounds}
    ratios = {name: _ratio(bound, parts[name]) for name, bound in _checked("bounds", bounds).items()}
    hardest = _largest(ratios)
    scale = noise_multiplier * _norm(ratios, unit=hardest) * _ABOVE
    if not 0 < scale < math.inf:
        raise InvalidValue("shape", allowed="above zero wherever a record can move the sum", given=hardest)
    return {name: scale * part for name, part in parts.items()}


_ABOVE = 1 + 1e-6  # rounding, of ratios in float64 or of sums in float32, must not leave too little noise


def _checked(what: str, given: Tensors) -> Tensors:
    for name, value in given.items():
        if not bool((value.isfinite() & (value >= 0)).all()):
            raise InvalidValue(what, allowed="finite numbers >= 0 for every coordinate", given=f"{name}: {value}")
    if not _largest(given) > 0:
        raise InvalidValue(what, allowed="above zero for some coordinate", given="zeros alone")
    return given


def _ratio(bound: Tensor, shape: Tensor) -> Tensor:
    """A coordinate that cannot move adds nothing; one that can, and would get no noise, makes the sum infinite."""
    return torch.where(bound > 0, bound.double() / shape, 0.0)


def _largest(given: Tensors) -> float:
    return max((float(value.max()) for value in given.values() if value.numel()), default=0.0)


def _norm(given: Tensors, *, unit: float) -> float:
    """Of all numbers taken as one vector, squared in a unit in which none of them is too large for it."""
    return unit * math.sqrt(math.fsum(float((value / unit).square().sum()) for value in given.values()))
