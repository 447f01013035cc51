"""Noise: the one way from a ``PrivateSum`` to a ``ReleasedSum``. The proofs are in ``noise.proof.md``.

- ``IsotropicNoise``: the Gaussian mechanism on the whole sum, taken as one vector; ``BudgetedNoise`` adapts its scale
- ``DiscreteNoise``: the same on integers, so that nothing about it is floating point
- ``ShapedNoise``: a standard deviation for each coordinate; ``ProportionalNoise`` (ADADP), ``OptimisedNoise`` (DPOPT)
- ``NoNoise``: for comparison

A record moves coordinate i by at most its bound s_i. With noise of standard deviation σ_i there, the release is a
Gaussian mechanism of noise multiplier σ wherever Σ s_i² / σ_i² ≤ 1 / σ². Every shape is scaled to meet that exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lehr import validate
from lehr.accounting.events import DISCRETE, FLOAT, Gaussian, RoundedGaussian
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum, StepOutcome, Tensors, at_least_float32
from lehr.privacy.rng import StepRandomness
from lehr.privacy.rounded_normal import SCALE_BITS

ROUNDING = 2**-22  # what sums in float64 may be off by, relative to the sensitivity: mechanism.proof.md


def with_rounding(sensitivity: float) -> float:
    """Return the sensitivity that noise is scaled from, with a margin for the rounding of sums."""
    return validate.positive(sensitivity=sensitivity) * (1 + ROUNDING)


class FixedNoise:
    """Noise whose multiplier is the plan's.

    ``kind``: how it is made, in the words of a plan. ``needs_bounds``: its shape follows bounds of coordinates.
    ``needs_limit``: its multiplier follows what was released, so its cost is not known beforehand.
    """

    kind: ClassVar[str] = FLOAT
    needs_bounds: ClassVar[bool] = False
    needs_limit: ClassVar[bool] = False

    def start(self, parameters: Tensors) -> ComponentState:
        return {}

    def factor(self, state: ComponentState) -> float:
        """Return the factor on the plan's noise multiplier."""
        return 1.0

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        return state


@dataclass(frozen=True)
class IsotropicNoise(FixedNoise):
    """Every coordinate gets independent Gaussian noise of standard deviation ``noise_multiplier * sensitivity``."""

    def event(self, noise_multiplier: float) -> Gaussian:
        """Return the event of a release."""
        return Gaussian(noise_multiplier=validate.positive(noise_multiplier=noise_multiplier))

    def noise_std(
        self, private: PrivateSum, noise_multiplier: float, state: ComponentState
    ) -> float | dict[str, Tensor]:
        """Return the standard deviation of the noise, one for all coordinates or one for each."""
        return validate.positive(noise_multiplier=noise_multiplier) * with_rounding(private.sensitivity)

    def release(
        self,
        private: PrivateSum,
        *,
        noise_multiplier: float,
        randomness: StepRandomness,
        state: ComponentState | None = None,
        purpose: str = "noise",
    ) -> ReleasedSum:
        """Return the sum with its noise, added once for the whole draw. The noise does not depend on the values.

        Two sums of one step need two purposes: each must have its own noise.
        """
        noise_std = self.noise_std(private, noise_multiplier, state or {})
        return ReleasedSum(
            values=randomness.noisy(purpose, private.values, noise_std),
            noise_std=noise_std,
            noise_multiplier=noise_multiplier,
        )


LARGEST_DISCRETE_NOISE = 2.0**16  # beyond this multiplier, rounding to integers would cost more than 7 %
_ROUNDING_TO_INTEGERS = 2.0**-20  # √d grid steps over 2⁴⁰ of them, for up to d = 2⁴⁰ coordinates
_LARGEST_INTEGER = 2.0**61


@dataclass(frozen=True)
class DiscreteNoise(IsotropicNoise):
    """The sum rounded to a grid, plus rounded Gaussian noise: integers, added exactly.

    A step of the grid is 2⁻⁴⁰ of the noise's standard deviation. Mironov (2012) and Haney et al. (2022) show what the
    last bits of sums and noise in floating point can tell; here they are the same integers whatever the records.
    """

    kind: ClassVar[str] = DISCRETE

    def event(self, noise_multiplier: float) -> RoundedGaussian:
        """Return the event of a release."""
        return RoundedGaussian(noise_multiplier=validate.positive(noise_multiplier=noise_multiplier))

    def noise_std(self, private: PrivateSum, noise_multiplier: float, state: ComponentState) -> float:
        """Return the standard deviation, enlarged by what rounding to the grid adds to the sensitivity."""
        if not validate.positive(noise_multiplier=noise_multiplier) <= LARGEST_DISCRETE_NOISE:
            allowed = f"at most {LARGEST_DISCRETE_NOISE:g} for discrete noise"
            raise InvalidValue("noise_multiplier", allowed=allowed, given=noise_multiplier)
        enlarged = with_rounding(private.sensitivity) * (1 + ROUNDING)  # by the division of a sum, too
        return noise_multiplier * enlarged / (1 - noise_multiplier * _ROUNDING_TO_INTEGERS)

    def release(
        self,
        private: PrivateSum,
        *,
        noise_multiplier: float,
        randomness: StepRandomness,
        state: ComponentState | None = None,
        purpose: str = "noise",
    ) -> ReleasedSum:
        """Return the rounded sum with its noise, added once for the whole draw as integers."""
        noise_std = self.noise_std(private, noise_multiplier, state or {})
        values = list(private.values.values())
        noise = randomness.rounded_normals(purpose, private.values)
        released = torch.cat([noise[name].flatten() for name in private.values])  # one vector, so few operations
        released += on_grid(torch.cat([value.double().flatten() for value in values]), noise_std)
        parts = torch.split(released.double() * (noise_std * 2.0**-SCALE_BITS), [value.numel() for value in values])
        return ReleasedSum(
            values={
                name: part.view(value.shape).to(at_least_float32(value.dtype))
                for part, (name, value) in zip(parts, private.values.items(), strict=True)
            },
            noise_std=noise_std,
            noise_multiplier=noise_multiplier,
        )


def on_grid(values: Tensor, noise_std: float) -> Tensor:
    """Return the values in steps of 2⁻⁴⁰ noise_std, rounded to int64. What is no number counts as zero."""
    steps = values.double().div(noise_std).mul_(2.0**SCALE_BITS).nan_to_num_(nan=0.0)
    return steps.clamp_(-_LARGEST_INTEGER, _LARGEST_INTEGER).round_().long()


def isotropic_noise(kind: str) -> IsotropicNoise:
    """Return isotropic noise of a kind: float or discrete."""
    return {FLOAT: IsotropicNoise, DISCRETE: DiscreteNoise}[validate.one_of((FLOAT, DISCRETE), noise=kind)]()


@dataclass(frozen=True)
class NoNoise(FixedNoise):
    """The sum as it is: a noise multiplier of zero, for which every accountant answers infinity."""

    def event(self, noise_multiplier: float = 0.0) -> Gaussian:
        """Return the event of a release without noise."""
        if noise_multiplier != 0:
            raise InvalidValue("noise_multiplier", allowed="0 where there is no noise", given=noise_multiplier)
        return Gaussian(noise_multiplier=0.0)

    def release(
        self,
        private: PrivateSum,
        *,
        noise_multiplier: float = 0.0,
        randomness: StepRandomness,
        state: ComponentState | None = None,
    ) -> ReleasedSum:
        """Return the sum, unchanged."""
        return ReleasedSum(
            values={name: value.to(at_least_float32(value.dtype)) for name, value in private.values.items()}
        )


@dataclass(frozen=True, kw_only=True)
class BudgetedNoise(IsotropicNoise):
    """AGD's noise: isotropic, and finer after a measurement that no step size could use.

    Lee & Kifer (2018), "Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy
    Budget". In zero-concentrated terms a measurement with noise multiplier σ costs 1 / 2σ². Where it led nowhere, the
    cost of one good measurement is raised by the share ``growth`` for good, and only the difference is measured at the
    same weights: averaged by their precisions, the two are worth the whole. So the cost of a measurement depends on
    earlier releases, and the run is charged against a filter. The state has costs relative to the first.

    >>> noise, refused = BudgetedNoise(growth=0.1), {"whole": 1.1, "next": 0.1}
    >>> round(noise.factor(refused), 3)  # the difference alone is a tenth, and so has √10 times the noise
    3.162
    """

    growth: float = 0.1

    needs_limit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.positive(growth=self.growth)

    def start(self, parameters: Tensors) -> ComponentState:
        return {"whole": 1.0, "next": 1.0}

    def factor(self, state: ComponentState) -> float:
        return 1 / math.sqrt(float(state["next"]))

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        whole = float(state["whole"])
        if taken.is_accepted:
            return {"whole": whole, "next": whole}
        return {"whole": (1 + self.growth) * whole, "next": self.growth * whole}


@dataclass(frozen=True)
class ShapedNoise(IsotropicNoise, ABC):
    """Noise whose shape follows the bounds of coordinates, wherever a sum has such bounds; otherwise isotropic."""

    needs_bounds: ClassVar[bool] = True

    @abstractmethod
    def shape(self, bounds: Tensors, state: ComponentState) -> Tensors:
        """Return numbers that the standard deviations are in proportion to, from public values only."""

    def noise_std(
        self, private: PrivateSum, noise_multiplier: float, state: ComponentState
    ) -> float | dict[str, Tensor]:
        """Return noise in proportion to the shape that is worth ``noise_multiplier``.

        Where a bound is zero, no record moves the coordinate, and its noise may be zero as well.
        """
        if private.bounds is None:
            return super().noise_std(private, noise_multiplier, state)
        bounds = {name: bound.double().to(private.values[name].device) for name, bound in private.bounds.items()}
        return fitted(bounds, self.shape(bounds, state), noise_multiplier=noise_multiplier)


def fitted(bounds: Tensors, shape: Tensors, *, noise_multiplier: float) -> dict[str, Tensor]:
    """Return the shape, scaled so that the squared ratios of bound and noise add up to 1 / noise_multiplier²."""
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
    """Return bound / shape: zero for a coordinate that cannot move, infinity for one that would get no noise."""
    return torch.where(bound > 0, bound.double() / shape, 0.0)


def _largest(given: Tensors) -> float:
    return max((float(value.max()) for value in given.values() if value.numel()), default=0.0)


def _norm(given: Tensors, *, unit: float) -> float:
    """Return the norm of all numbers as one vector; no square overflows in this unit."""
    return unit * math.sqrt(math.fsum(float((value / unit).square().sum()) for value in given.values()))


@dataclass(frozen=True)
class ProportionalNoise(ShapedNoise):
    """ADADP's noise (Xu et al. 2020): in proportion to the bound of each coordinate, σ √m s_i for m coordinates."""

    def shape(self, bounds: Tensors, state: ComponentState) -> Tensors:
        return bounds


_WAYS = ("closed-form", "projected-gradient")


@dataclass(frozen=True, kw_only=True)
class OptimisedNoise(ShapedNoise):
    """DPOPT's noise: least where it hurts the loss most.

    Xiang et al. (2019), "Differentially-Private Deep Learning from an Optimization Perspective". To first order, noise
    of standard deviations σ_i moves the loss by a number of variance Σ c_i² σ_i², where c is the gradient. Under
    Σ s_i² / σ_i² ≤ 1 / σ² that is least for σ_i² in proportion to s_i / |c_i|. c is taken from released sums and
    floored, which is post-processing. The optimum is found in closed form or, as in the paper, by projected gradient
    descent.

    ``memory`` is that of the running mean of released gradients; a coordinate's gradient counts as at least
    ``least_share`` of their root mean square.
    """

    found_by: Literal["closed-form", "projected-gradient"] = "closed-form"
    memory: float = 0.9
    least_share: float = 0.1

    def __post_init__(self) -> None:
        validate.one_of(_WAYS, found_by=self.found_by)
        validate.delta(memory=self.memory)
        validate.delta(least_share=self.least_share)

    def start(self, parameters: Tensors) -> ComponentState:
        return {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        seen = taken.released.values
        return {
            name: self.memory * mean + (1 - self.memory) * seen[name].double() / taken.divisor
            for name, mean in state.items()
        }

    def shape(self, bounds: Tensors, state: ComponentState) -> Tensors:
        slopes = self.slopes(state, bounds)
        return closed_form(bounds, slopes) if self.found_by == "closed-form" else projected_gradient(bounds, slopes)

    def slopes(self, state: ComponentState, like: Tensors) -> dict[str, Tensor]:
        """Return the size of each coordinate's gradient, floored; all the same where nothing is known."""
        known = {name: value.abs() for name, value in state.items() if isinstance(value, Tensor)}
        whole = sum(float(value.square().sum()) for value in known.values())
        if not 0 < whole < math.inf:  # nothing is known, or the run has diverged
            return {name: torch.ones_like(value, dtype=torch.float64) for name, value in like.items()}
        root_mean_square = (whole / sum(value.numel() for value in known.values())) ** 0.5
        return {name: value.clamp_min(self.least_share * root_mean_square) for name, value in known.items()}


def closed_form(bounds: Tensors, slopes: Tensors) -> dict[str, Tensor]:
    """Return the best shape: σ_i in proportion to √(s_i / |c_i|)."""
    return {name: (bounds[name] / slopes[name]).sqrt() for name in bounds}


def projected_gradient(
    bounds: Tensors, slopes: Tensors, *, steps: int = 50, step_size: float = 0.5
) -> dict[str, Tensor]:
    """Return the paper's shape: ``steps`` down the variance, each followed by a projection to the constraint.

    Written in the shares y_i = s_i² σ² / σ_i² the constraint is Σ y_i = 1, and the variance Σ (c_i s_i)² / y_i up to a
    constant. The steps are exponentiated ones, whose projection is a division, and no share can turn negative.
    """
    importance = {name: slopes[name] * bounds[name] for name in bounds}
    shares = _projected({name: torch.ones_like(bound) for name, bound in bounds.items()}, bounds)
    for _ in range(steps):
        gains = {name: (importance[name] / shares[name]).nan_to_num(0.0).square() for name in bounds}
        mean = math.fsum(float((shares[name] * gains[name]).sum()) for name in bounds)
        moved = {name: shares[name] * torch.exp(step_size * (gains[name] / mean - 1).clamp_max(1.0)) for name in bounds}
        shares = _projected(moved, bounds)
    return {name: (bounds[name] / shares[name].sqrt()).nan_to_num(0.0) for name in bounds}


def _projected(shares: Tensors, bounds: Tensors) -> dict[str, Tensor]:
    """Return shares that add up to one, zero for coordinates that cannot move."""
    moving = {name: torch.where(bounds[name] > 0, share, 0.0) for name, share in shares.items()}
    whole = math.fsum(float(share.sum()) for share in moving.values())
    return {name: share / whole for name, share in moving.items()}
