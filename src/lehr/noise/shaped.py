"""Gaussian noise with a standard deviation for each coordinate, none of which may be too small for the bounds.

A record moves coordinate i by at most its bound s_i. With noise of standard deviation σ_i there, the release is a
Gaussian mechanism of noise multiplier σ wherever Σ s_i² / σ_i² ≤ 1 / σ² (``shaped.proof.md``). Whatever shape is asked
for is scaled to meet that exactly.
"""

from __future__ import annotations

import math

from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum, Tensors, at_least_float32
from lehr.rng import StepRandomness


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
    ratios = {name: _ratio(bounds[name], shape[name].double()) for name in bounds}
    total = math.fsum(float(ratio.square().sum()) for ratio in ratios.values())
    if not 0 <= total < math.inf:
        raise InvalidValue("shape", allowed="above zero wherever a record can move the sum", given=total)
    scale = noise_multiplier * math.sqrt(total) * _ABOVE
    return {name: scale * shape[name].double() for name in bounds}


_ABOVE = 1 + 1e-9  # rounding in the sum of ratios must not leave too little noise


def _ratio(bound: Tensor, shape: Tensor) -> Tensor:
    """A coordinate that cannot move adds nothing; one that can, and would get no noise, makes the sum infinite."""
    return (bound / shape).nan_to_num(nan=0.0, posinf=math.inf)
