"""The privacy loss of one Poisson-sampled Gaussian step, exactly and on a grid.

With noise multiplier σ and sampling probability q the two worst neighbours release, up to a rotation, a draw from
N(0, σ²) or from the mixture (1 − q)·N(0, σ²) + q·N(1, σ²) (Mironov, Talwar & Zhang 2019; Zhu, Dong & Wang 2022). The
loss of an outcome x is the log of the ratio of its densities, upper over lower, drawn from the upper one. Removing a
record puts the mixture above, adding one puts it below; the two must be composed apart (Lebeda et al. 2024).

On a grid, the mass between two neighbouring points moves to these two points so that both the upper and the lower
probability are kept. The result dominates the true pair: the "connect the dots" rule of Doroshenko et al. (2022),
computed interval by interval, so that each mass keeps its relative precision however small it is.

Randomised response, one bit that is told truly with probability e^ε / (1 + e^ε), is the worst ε-differentially private
mechanism: every other is a post-processing of it (Kairouz, Oh & Viswanath 2015). Its loss is ε for the true bit and −ε
for the other, in both directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

_QUADRATURE_POINTS = 2049
_LOG_TAIL_PER_DELTA = -35.0  # of the mass called infinitely lossy in a step: below δ·1e-15, below δ·1e-8 in 10⁷ steps
_GRIDS_KEPT = 6  # queries for one step at several counts share them; a fine one has millions of points
_NEAR_ONE = 0.7  # of a logarithm: within it, differences from one are computed as such
_LARGEST_EXPONENT = 700.0  # of a double, nearly
_OVERFLOW_GUARD = 30.0  # beyond this exponent e^x − 1 and e^x are the same double


class Direction(Enum):
    """Which neighbour stands above in the ratio."""

    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class GridLoss:
    """Masses at the losses (first + i)·spacing, and the mass whose loss counts as infinite."""

    spacing: float
    first: int
    masses: Floats
    infinite_mass: float

    @property
    def losses(self) -> Floats:
        """The loss of each mass."""
        return np.arange(self.first, self.first + len(self.masses), dtype=np.float64) * self.spacing


class Loss(Protocol):
    """The privacy loss of one step in one direction, as far as composing needs it."""

    @property
    def largest(self) -> float:
        """No loss is larger, but for a mass that the grid calls infinitely lossy."""

    @property
    def smallest(self) -> float:
        """Smaller losses count as this."""

    def log_moment(self, tilt: float) -> float:
        """log E[e^(tilt·loss)]."""

    def variance(self, tilt: float) -> float:
        """The variance of the loss under the law tilted by e^(tilt·loss)."""

    def on_grid(self, spacing: float) -> GridLoss:
        """The loss on a grid, rounded so that every ε computed from it is an upper bound."""


class SampledGaussianLoss:
    """The loss of one step in one direction. All arguments are public numbers."""

    def __init__(
        self, *, sampling_probability: float, noise_multiplier: float, direction: Direction, delta: float
    ) -> None:
        self.sampling_probability = sampling_probability
        self.noise_multiplier = noise_multiplier
        self.direction = direction
        reach = -special.ndtri_exp(math.log(delta) + _LOG_TAIL_PER_DELTA)
        self._outcomes = np.linspace(-reach * noise_multiplier, 1 + reach * noise_multiplier, _QUADRATURE_POINTS)
        log_ratio = _log_ratio(self._outcomes, sampling_probability, noise_multiplier)
        width = (self._outcomes[1] - self._outcomes[0]) / (noise_multiplier * math.sqrt(2 * math.pi))
        log_lower = -0.5 * (self._outcomes / noise_multiplier) ** 2 + math.log(width)
        removing = direction is Direction.REMOVE
        self._log_upper = log_lower + log_ratio if removing else log_lower
        self._losses = log_ratio if removing else -log_ratio
        self.largest = float(self._losses.max())
        self.smallest = float(self._losses.min())
        typical_outcomes = np.array([0.5 - noise_multiplier, 0.5 + noise_multiplier])
        self.typical = float(np.abs(_log_ratio(typical_outcomes, sampling_probability, noise_multiplier)).max())
        self._log_moments: dict[float, float] = {}
        self._grids: dict[float, GridLoss] = {}

    def log_moment(self, tilt: float) -> float:
        """log E[e^(tilt·loss)]: the step's Rényi divergence of order tilt + 1, times tilt (trapezoid rule)."""
        if tilt not in self._log_moments:
            self._log_moments[tilt] = float(special.logsumexp(self._log_upper + tilt * self._losses))
        return self._log_moments[tilt]

    def variance(self, tilt: float) -> float:
        """The variance of the loss under the law tilted by e^(tilt·loss)."""
        masses = np.exp(self._log_upper + tilt * self._losses - self.log_moment(tilt))
        mean = masses @ self._losses
        return float(masses @ (self._losses - mean) ** 2)

    def on_grid(self, spacing: float) -> GridLoss:
        """The loss on a grid, rounded so that every ε computed from it is an upper bound."""
        if spacing not in self._grids:
            if len(self._grids) == _GRIDS_KEPT:
                self._grids.pop(next(iter(self._grids)))
            self._grids[spacing] = self._discretise(spacing)
        return self._grids[spacing]

    def on_points(self, losses: Floats) -> tuple[Floats, float]:
        """Masses at these rising losses, rounded so that every ε from them is a bound, and the mass beyond them."""
        upper, excess, below, beyond = self._interval_masses(losses)
        to_right = np.clip(excess / -np.expm1(-np.diff(losses)), 0.0, upper)
        masses = np.zeros(len(losses))
        masses[1:] = to_right
        masses[:-1] += upper - to_right
        masses[0] += below
        return masses, beyond

    def _discretise(self, spacing: float) -> GridLoss:
        first, last = math.floor(self.smallest / spacing), math.ceil(self.largest / spacing)
        return GridLoss(spacing, first, *self.on_points(np.arange(first, last + 1, dtype=np.float64) * spacing))

    def _interval_masses(self, losses: Floats) -> tuple[Floats, Floats, float, float]:
        """Of each interval [l, l + h]: its upper probability U and U − e^l·(its lower one); U below and beyond all.

        The upper and the lower law differ by q·(present − absent) only, which keeps a tiny q out of the rounding.
        """
        q, sigma = self.sampling_probability, self.noise_multiplier
        removing = self.direction is Direction.REMOVE
        outcomes = _outcome_of_log_ratio(losses if removing else -losses, q, sigma)
        absent = _normal_masses(outcomes / sigma)
        present = _normal_masses((outcomes - 1) / sigma)
        mixture = (1 - q) * absent + q * present
        lowest, highest = (float(outcomes[i]) for i in (0, -1))
        if removing:
            below = (1 - q) * special.ndtr(lowest / sigma) + q * special.ndtr((lowest - 1) / sigma)
            beyond = (1 - q) * special.ndtr(-highest / sigma) + q * special.ndtr((1 - highest) / sigma)
            return mixture, q * (present - absent) - np.expm1(losses[:-1]) * absent, float(below), float(beyond)
        excess = q * (absent - present) - np.expm1(losses[:-1]) * mixture
        return absent, excess, float(special.ndtr(-lowest / sigma)), float(special.ndtr(highest / sigma))


def split(losses: Floats, masses: Floats, points: Floats) -> Floats:
    """Each mass shared by the two points next to its loss, so that neither its sum nor that of e^(−loss) changes."""
    left = np.clip(np.searchsorted(points, losses, side="right") - 1, 0, len(points) - 2)
    share = np.clip(np.expm1(points[left] - losses) / np.expm1(points[left] - points[left + 1]), 0.0, 1.0)
    to_right = share * masses
    shared = (np.bincount(left, masses - to_right, len(points)), np.bincount(left + 1, to_right, len(points)))
    return np.asarray(shared[0] + shared[1], dtype=np.float64)


def _log_ratio(outcomes: Floats, q: float, sigma: float) -> Floats:
    """log of mixture over N(0, σ²) at each outcome."""
    exponent = (2 * outcomes - 1) / (2 * sigma**2)
    if q == 1:
        return exponent
    near_one = np.log1p(q * np.expm1(np.minimum(exponent, _LARGEST_EXPONENT)))
    elsewhere = np.logaddexp(math.log1p(-q), math.log(q) + exponent)
    return np.where(np.abs(near_one) < _NEAR_ONE, near_one, elsewhere)


def _outcome_of_log_ratio(log_ratios: Floats, q: float, sigma: float) -> Floats:
    """The inverse of ``_log_ratio``; −∞ for ratios at or below 1 − q, which no outcome reaches."""
    if q == 1:
        return sigma**2 * log_ratios + 0.5
    near_one = np.expm1(np.minimum(log_ratios, _OVERFLOW_GUARD)) + q
    below_one = np.exp(np.minimum(log_ratios, 0.0)) - (1 - q)
    with np.errstate(divide="ignore"):
        small = np.log(np.maximum(np.where(log_ratios < -_NEAR_ONE, below_one, near_one), 0.0) / q)
        large = log_ratios - math.log(q) + np.log1p(-(1 - q) * np.exp(-np.maximum(log_ratios, _OVERFLOW_GUARD)))
    return np.asarray(sigma**2 * np.where(log_ratios < _OVERFLOW_GUARD, small, large) + 0.5)


def _normal_masses(edges: Floats) -> Floats:
    """Standard normal probability between neighbouring edges (rising or falling), precise in both tails."""
    tails = special.ndtr(-np.abs(edges))
    left, right = tails[:-1], tails[1:]
    same_side = np.signbit(edges[:-1]) == np.signbit(edges[1:])
    return np.asarray(np.where(same_side, np.abs(left - right), np.maximum(1 - left - right, 0.0)))


_SMALLEST_EPSILON = 1e-140  # a smaller one, but for zero, counts as this: its square is still a double
_LARGEST_EPSILON = 1e200  # a larger one counts as infinite
_FLAT_EXPONENT = 1e3  # beyond it e^(−exponent) is no double
_ROUNDING = 1e-14  # relative, of a divergence: some fifty units in the last place
_SMALL_EXPONENT = 100.0  # its hyperbolic sine, squared, is still a double
_SMALLEST_VARIANCE = 1e-200  # it only steers; zero could not be divided by


def randomised_response_divergences(epsilon: float, orders: Floats) -> Floats:
    """The Rényi divergence of randomised response at each order, never below the truth and never above ε.

    With a = (order − ½)·ε and b = ε/2 it is (log cosh a − log cosh b)/(order − 1).
    """
    if epsilon == 0 or epsilon > _LARGEST_EPSILON:
        return np.full(len(orders), 0.0 if epsilon == 0 else math.inf)
    epsilon = max(epsilon, _SMALLEST_EPSILON)
    exponent = min(epsilon, _FLAT_EXPONENT)
    more, less = (np.minimum(scale * exponent / 2, _SMALL_EXPONENT) for scale in (orders, orders - 1))
    near_one = np.log1p(2 * np.sinh(more) * np.sinh(less) / math.cosh(min(exponent / 2, _SMALL_EXPONENT)))
    rest = np.log1p(np.exp(-(2 * orders - 1) * exponent)) - math.log1p(math.exp(-exponent))
    found = np.where(more < _SMALL_EXPONENT, near_one / (orders - 1), epsilon + rest / (orders - 1))
    return np.asarray(np.minimum(found * (1 + _ROUNDING), epsilon))


class RandomisedResponseLoss:
    """The privacy loss of randomised response, exactly and on a grid."""

    def __init__(self, epsilon: float) -> None:
        epsilon = max(epsilon, _SMALLEST_EPSILON)
        self.largest, self.smallest = epsilon, -epsilon
        self._log_true = -math.log1p(math.exp(-epsilon))

    def log_moment(self, tilt: float) -> float:
        """log E[e^(tilt·loss)]."""
        epsilon = self.largest
        return float(np.logaddexp(self._log_true + tilt * epsilon, self._log_true - (1 + tilt) * epsilon))

    def variance(self, tilt: float) -> float:
        """The variance of the loss under the law tilted by e^(tilt·loss)."""
        odds = math.exp(-abs(1 + 2 * tilt) * self.largest)
        return max(4 * self.largest**2 * odds / (1 + odds) ** 2, _SMALLEST_VARIANCE)

    def on_grid(self, spacing: float) -> GridLoss:
        """Each of the two masses split between its neighbours on the grid, so that every ε from it is a bound."""
        last = math.ceil(self.largest / spacing) + 1
        masses = np.zeros(2 * last + 1)
        for loss, log_mass in ((self.largest, self._log_true), (self.smallest, self._log_true - self.largest)):
            left = math.floor(loss / spacing)
            share = min(max(math.expm1(left * spacing - loss) / math.expm1(-spacing), 0.0), 1.0)
            masses[left + last + 1] += share * math.exp(log_mass)
            masses[left + last] += (1 - share) * math.exp(log_mass)
        return GridLoss(spacing, -last, masses, 0.0)
