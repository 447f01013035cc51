"""The privacy loss of one step, exactly and on a grid.

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
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Floats = NDArray[np.float64]

_QUADRATURE_POINTS = 2049
_LOG_TAIL_PER_DELTA = -35.0  # of the mass called infinitely lossy in a step: below δ·1e-15, below δ·1e-8 in 10⁷ steps
_GRIDS_KEPT = 6  # queries for one step at several counts share them; a fine one has millions of points
_NEAR_ONE = 0.7  # of a logarithm: within it, differences from one are computed as such
_LARGEST_EXPONENT = 700.0  # of a double, nearly
_OVERFLOW_GUARD = 30.0  # beyond this exponent e^x − 1 and e^x are the same double
_SMALLEST_VARIANCE = 1e-200  # it only steers; zero could not be divided by
_NEWTON_STEPS, _CLOSE_ENOUGH = 60, 1e-13  # the latter relative to σ
_SMALLEST_EPSILON = 1e-140  # of randomised response: its square is still a double


class Direction(Enum):
    """Which neighbour is above in the ratio."""

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
        return np.arange(self.first, self.first + len(self.masses), dtype=np.float64) * self.spacing


class PrivacyLoss(ABC):
    """The loss of one step in one direction.

    ``losses`` and the logarithms of their masses give its moments, which only steer a composition. ``largest`` and
    ``smallest`` are the ends of its grid: mass beyond counts as infinitely lossy, mass below as the smallest loss.
    """

    def __init__(self, losses: Floats, log_masses: Floats) -> None:
        self.losses, self.log_masses = losses, log_masses
        self.largest, self.smallest = float(losses.max()), float(losses.min())
        self._log_moments: dict[float, float] = {}
        self._grids: dict[float, GridLoss] = {}

    @abstractmethod
    def on_points(self, points: Floats) -> tuple[Floats, float]:
        """Masses at these rising losses, rounded so that every ε from them is a bound, and the mass beyond them."""

    def on_grid(self, spacing: float) -> GridLoss:
        """The loss on an evenly spaced grid."""
        if spacing not in self._grids:
            if len(self._grids) == _GRIDS_KEPT:
                self._grids.pop(next(iter(self._grids)))
            first, last = math.floor(self.smallest / spacing), math.ceil(self.largest / spacing)
            points = np.arange(first, last + 1, dtype=np.float64) * spacing
            self._grids[spacing] = GridLoss(spacing, first, *self.on_points(points))
        return self._grids[spacing]

    def log_moment(self, tilt: float) -> float:
        """log E[e^(tilt·loss)]: the step's Rényi divergence of order tilt + 1, times tilt."""
        if tilt not in self._log_moments:
            self._log_moments[tilt] = float(special.logsumexp(self.log_masses + tilt * self.losses))
        return self._log_moments[tilt]

    def variance(self, tilt: float) -> float:
        """The variance of the loss under the law tilted by e^(tilt·loss)."""
        masses = np.exp(self.log_masses + tilt * self.losses - self.log_moment(tilt))
        return max(float(masses @ (self.losses - masses @ self.losses) ** 2), _SMALLEST_VARIANCE)


class SampledGaussianLoss(PrivacyLoss):
    """The loss of one Poisson-sampled Gaussian step; its moments are by the trapezoid rule."""

    def __init__(
        self, *, sampling_probability: float, noise_multiplier: float, direction: Direction, delta: float
    ) -> None:
        self.sampling_probability = sampling_probability
        self.noise_multiplier = noise_multiplier
        self.direction = direction
        reach = -special.ndtri_exp(math.log(delta) + _LOG_TAIL_PER_DELTA)
        outcomes = np.linspace(-reach * noise_multiplier, 1 + reach * noise_multiplier, _QUADRATURE_POINTS)
        log_ratio = _log_ratio(outcomes, sampling_probability, noise_multiplier)
        width = (outcomes[1] - outcomes[0]) / (noise_multiplier * math.sqrt(2 * math.pi))
        log_lower = -0.5 * (outcomes / noise_multiplier) ** 2 + math.log(width)
        if direction is Direction.REMOVE:
            super().__init__(log_ratio, log_lower + log_ratio)
        else:
            super().__init__(-log_ratio, log_lower)
        typical_outcomes = np.array([0.5 - noise_multiplier, 0.5 + noise_multiplier])
        self.typical = float(np.abs(_log_ratio(typical_outcomes, sampling_probability, noise_multiplier)).max())

    def on_points(self, points: Floats) -> tuple[Floats, float]:
        upper, excess, below, beyond = self._interval_masses(points)
        masses = _connected(points, upper, excess)
        masses[0] += below
        return masses, beyond

    def _interval_masses(self, losses: Floats) -> tuple[Floats, Floats, float, float]:
        """Of each interval [l, l + h]: its upper probability U and U − e^l·(its lower one); U below and beyond all.

        The upper and the lower law differ by q·(present − absent) only, which keeps a tiny q out of the rounding.
        """
        q, sigma = self.sampling_probability, self.noise_multiplier
        removing = self.direction is Direction.REMOVE
        outcomes = _outcome_of_log_ratio(losses if removing else -losses, q, sigma)
        absent = normal_masses(outcomes / sigma)
        present = normal_masses((outcomes - 1) / sigma)
        mixture = (1 - q) * absent + q * present
        lowest, highest = (float(outcomes[i]) for i in (0, -1))
        if removing:
            below = (1 - q) * special.ndtr(lowest / sigma) + q * special.ndtr((lowest - 1) / sigma)
            beyond = (1 - q) * special.ndtr(-highest / sigma) + q * special.ndtr((1 - highest) / sigma)
            return mixture, q * (present - absent) - np.expm1(losses[:-1]) * absent, float(below), float(beyond)
        excess = q * (absent - present) - np.expm1(losses[:-1]) * mixture
        return absent, excess, float(special.ndtr(-lowest / sigma)), float(special.ndtr(highest / sigma))


class MixedLoss(PrivacyLoss):
    """The loss of a step that has one of two losses, decided by a coin which both neighbours share and show.

    ``probability`` is that of the second. The coin says nothing about the neighbours, so each mass is that of the loss
    it decides on, times its probability.
    """

    def __init__(self, usual: PrivacyLoss, other: PrivacyLoss, probability: float) -> None:
        self._parts = ((1 - probability, usual), (probability, other))
        with np.errstate(divide="ignore"):
            log_masses = [part.log_masses + np.log(weight) for weight, part in self._parts]
        super().__init__(np.concatenate([part.losses for _, part in self._parts]), np.concatenate(log_masses))

    def on_points(self, points: Floats) -> tuple[Floats, float]:
        (usual, usual_beyond), (other, other_beyond) = (part.on_points(points) for _, part in self._parts)
        (often, _), (rarely, _) = self._parts
        return often * usual + rarely * other, often * usual_beyond + rarely * other_beyond


class FixedSizeLoss(PrivacyLoss):
    """The loss of a Gaussian step on a fixed number of records, where a record is zeroed out.

    Its losses above zero are those of the worst neighbours for them, and its losses below zero those of the worst for
    them: ``pld.proof.md``. On the side on which the record is above, the neighbours release (1 − q)·N(−1, σ²) +
    q·N(1, σ²) and (1 − q)·N(−1, σ²) + q·N(0, σ²): whoever takes the place of the record is its opposite. On the other
    side they are those of Poisson sampling. What is left of the probability has no loss.
    """

    def __init__(
        self, *, sampling_probability: float, noise_multiplier: float, direction: Direction, delta: float
    ) -> None:
        self.sampling_probability, self.noise_multiplier = sampling_probability, noise_multiplier
        self._sign = 1.0 if direction is Direction.REMOVE else -1.0
        self._poisson = SampledGaussianLoss(
            sampling_probability=sampling_probability,
            noise_multiplier=noise_multiplier,
            direction=Direction.ADD if direction is Direction.REMOVE else Direction.REMOVE,
            delta=delta,
        )
        reach = -special.ndtri_exp(math.log(delta) + _LOG_TAIL_PER_DELTA)
        outcomes = np.linspace(0.5, 1 + reach * noise_multiplier, _QUADRATURE_POINTS)
        width = (outcomes[1] - outcomes[0]) / (noise_multiplier * math.sqrt(2 * math.pi))
        log_laws = [
            np.logaddexp(
                np.log1p(-sampling_probability) - 0.5 * ((outcomes + 1) / noise_multiplier) ** 2,
                math.log(sampling_probability) - 0.5 * ((outcomes - mean) / noise_multiplier) ** 2,
            )
            for mean in (1, 0)
        ]
        ours = self._sign * (log_laws[0] - log_laws[1])
        is_theirs = self._sign * self._poisson.losses < 0
        log_masses = [log_laws[0 if direction is Direction.REMOVE else 1] + math.log(width)]
        log_masses.append(self._poisson.log_masses[is_theirs])
        with np.errstate(divide="ignore"):
            log_masses.append(np.log([max(0.0, 1 - float(np.exp(np.concatenate(log_masses)).sum()))]))
        super().__init__(np.concatenate([ours, self._poisson.losses[is_theirs], [0.0]]), np.concatenate(log_masses))

    def on_points(self, points: Floats) -> tuple[Floats, float]:
        low, high = points[points <= 0], points[points >= 0]
        sides = (self._opposite, self._poisson._interval_masses)
        of_low, of_high = sides if self._sign < 0 else sides[::-1]
        lower, lower_excess, below, _ = of_low(low)
        upper, upper_excess, _, beyond = of_high(high)
        mass, excess = np.concatenate([lower, upper]), np.concatenate([lower_excess, upper_excess])
        masses = _connected(points, mass, excess)
        masses[0] += below
        masses[len(low) - 1] += max(0.0, 1 - float(mass.sum()) - below - beyond)
        return masses, beyond

    def _opposite(self, losses: Floats) -> tuple[Floats, Floats, float, float]:
        """As ``SampledGaussianLoss._interval_masses``, with the opposite in place; of losses on one side of zero."""
        q, sigma = self.sampling_probability, self.noise_multiplier
        outcomes = _outcome_beside_opposite(np.abs(losses), q, sigma)
        other, present, absent = (normal_masses((outcomes - mean) / sigma) for mean in (-1, 1, 0))
        tails = {
            mean: (1 - q) * special.ndtr(-(outcomes + 1) / sigma) + q * special.ndtr((mean - outcomes) / sigma)
            for mean in (0, 1)
        }
        if self._sign > 0:
            below_zero = (1 - q) * other + q * absent
            excess = q * (present - absent) - np.expm1(losses[:-1]) * below_zero
            return (1 - q) * other + q * present, excess, 0.0, float(tails[1][-1])
        with_it = (1 - q) * other + q * present
        excess = q * (absent - present) - np.expm1(losses[:-1]) * with_it
        return (1 - q) * other + q * absent, excess, float(tails[0][0]), 0.0


class GroupLoss(PrivacyLoss):
    """The loss of one Poisson-sampled Gaussian step where neighbours differ in a group of records.

    The worst neighbours release Σ_j b_j·N(j, σ²) and N(0, σ²), where j is binomial: ``pld.proof.md``. Numbers j that
    are too unlikely to matter count as infinitely lossy.
    """

    def __init__(
        self,
        *,
        sampling_probability: float,
        group_size: int,
        noise_multiplier: float,
        direction: Direction,
        delta: float,
    ) -> None:
        self.direction, self.noise_multiplier = direction, noise_multiplier
        log_tail = math.log(delta) + _LOG_TAIL_PER_DELTA
        drawn = np.arange(1, group_size + 1, dtype=np.float64)
        log_weights = stats.binom.logpmf(drawn, group_size, sampling_probability)
        log_beyond = stats.binom.logsf(drawn, group_size, sampling_probability)  # precise where it is small
        kept = 1 + int(np.argmax(log_beyond <= log_tail))  # at the last of them it is minus infinity
        self._drawn, self._log_weights = drawn[:kept], log_weights[:kept]
        self._weights = np.exp(self._log_weights)
        self._dropped = float(np.exp(log_beyond[kept - 1]))
        self._log_none = group_size * math.log1p(-sampling_probability)
        self._any, self._none = -math.expm1(self._log_none), math.exp(self._log_none)
        reach = -special.ndtri_exp(log_tail) * noise_multiplier
        last = reach if direction is Direction.ADD else self._last_outcome(log_tail, reach)
        outcomes = np.linspace(-reach, last, _QUADRATURE_POINTS + 16 * math.ceil((last + reach) / noise_multiplier))
        log_ratio = self._log_ratio(outcomes)
        width = (outcomes[1] - outcomes[0]) / (noise_multiplier * math.sqrt(2 * math.pi))
        log_lower = -0.5 * (outcomes / noise_multiplier) ** 2 + math.log(width)
        if direction is Direction.REMOVE:
            super().__init__(log_ratio, log_lower + log_ratio)
        else:
            super().__init__(-log_ratio, log_lower)

    def on_points(self, points: Floats) -> tuple[Floats, float]:
        removing, sigma = self.direction is Direction.REMOVE, self.noise_multiplier
        outcomes = self._outcome_of(points if removing else -points)
        absent = normal_masses(outcomes / sigma)
        more = -self._dropped * absent  # the mixture less N(0, σ²)
        for weight, mean in zip(self._weights, self._drawn, strict=True):
            more += weight * (normal_masses((outcomes - mean) / sigma) - absent)
        mixture = np.maximum(absent + more, 0.0)
        lowest, highest = (float(outcomes[i]) for i in (0, -1))
        if removing:
            upper, excess = mixture, more - np.expm1(points[:-1]) * absent
            below = self._none * special.ndtr(lowest / sigma) + self._weights @ special.ndtr(
                (lowest - self._drawn) / sigma
            )
            beyond = self._none * special.ndtr(-highest / sigma)
            beyond += self._weights @ special.ndtr((self._drawn - highest) / sigma) + self._dropped
        else:
            upper, excess = absent, -more - np.expm1(points[:-1]) * mixture
            below, beyond = special.ndtr(-lowest / sigma), special.ndtr(highest / sigma)
        masses = _connected(points, upper, excess)
        masses[0] += float(below)
        return masses, float(beyond)

    def _last_outcome(self, log_tail: float, reach: float) -> float:
        """An outcome beyond which the mixture has less than the tail that counts as infinitely lossy."""
        low, high = 0.0, float(self._drawn[-1]) + reach
        while high - low > 0.01 * self.noise_multiplier:
            middle = (low + high) / 2
            log_tails = self._log_weights + special.log_ndtr((self._drawn - middle) / self.noise_multiplier)
            low, high = (low, middle) if special.logsumexp(log_tails) <= log_tail else (middle, high)
        return max(high, reach)

    def _log_any(self, outcomes: Floats) -> tuple[Floats, Floats]:
        """log of the part of the mixture with j >= 1 over N(0, σ²), and its derivative by the outcome."""
        variance = self.noise_multiplier**2
        largest = np.full_like(outcomes, -np.inf)
        total, slope = np.zeros_like(outcomes), np.zeros_like(outcomes)
        for log_weight, mean in zip(self._log_weights, self._drawn, strict=True):
            largest = np.maximum(largest, log_weight + (2 * outcomes - mean) * mean / (2 * variance))
        for log_weight, mean in zip(self._log_weights, self._drawn, strict=True):
            share = np.exp(log_weight + (2 * outcomes - mean) * mean / (2 * variance) - largest)
            total += share
            slope += mean * share
        return largest + np.log(total), slope / total / variance

    def _log_ratio(self, outcomes: Floats) -> Floats:
        """log of mixture over N(0, σ²) at each outcome."""
        rest = self._log_any(outcomes)[0]
        with np.errstate(divide="ignore"):
            near_one = np.log1p(np.exp(np.minimum(rest, 1.0)) - self._any)
        return np.where(np.abs(near_one) < _NEAR_ONE, near_one, np.logaddexp(self._log_none, rest))

    def _outcome_of(self, log_ratios: Floats) -> Floats:
        """The inverse of ``_log_ratio``, by Newton's method; −∞ for ratios that no outcome reaches."""
        wanted = _log_of_rest(log_ratios, self._any, self._none) + math.log(self._any)
        outcomes = np.full_like(wanted, -np.inf)
        reached = wanted > -np.inf
        target, sigma = wanted[reached], self.noise_multiplier
        if len(target):
            # The logarithm is convex, with a slope of at least 1/σ²: from the right, steps never pass the root.
            guesses = np.linspace(-60 * sigma, float(self._drawn[-1]) + 60 * sigma, 4 * _QUADRATURE_POINTS)
            found = np.interp(target, self._log_any(guesses)[0], guesses)
            for _ in range(_NEWTON_STEPS):
                value, slope = self._log_any(found)
                step = (value - target) / slope
                found -= step
                if float(np.abs(step).max()) <= _CLOSE_ENOUGH * sigma:
                    break
            outcomes[reached] = found
        return outcomes


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
    return np.asarray(sigma**2 * _log_of_rest(log_ratios, q, 1 - q) + 0.5)


def _log_of_rest(log_ratios: Floats, q: float, none: float) -> Floats:
    """log r where (1 − q) + q·r is each ratio; −∞ for ratios at or below ``none``, which is 1 − q."""
    near_one = np.expm1(np.minimum(log_ratios, _OVERFLOW_GUARD)) + q
    below_one = np.exp(np.minimum(log_ratios, 0.0)) - none
    with np.errstate(divide="ignore"):
        small = np.log(np.maximum(np.where(log_ratios < -_NEAR_ONE, below_one, near_one), 0.0) / q)
        large = log_ratios - math.log(q) + np.log1p(-none * np.exp(-np.maximum(log_ratios, _OVERFLOW_GUARD)))
    return np.where(log_ratios < _OVERFLOW_GUARD, small, large)


def _outcome_beside_opposite(losses: Floats, q: float, sigma: float) -> Floats:
    """The outcome at which ((1 − q)·φ(x + 1) + q·φ(x − 1)) / ((1 − q)·φ(x + 1) + q·φ(x)) is e^loss, for losses >= 0.

    With u = e^(x/σ²) and k = e^(1/(2σ²)) it is where q·u² − e^loss·q·k·u = (1 − q)·(e^loss − 1).
    """
    log_k = 1 / (2 * sigma**2)
    rest = 4 * ((1 - q) / q) * -np.expm1(-losses) * np.exp(-losses - 2 * log_k)
    return np.asarray(sigma**2 * (losses + log_k + np.log1p(rest / (2 * (1 + np.sqrt(1 + rest))))))


def _connected(points: Floats, upper: Floats, excess: Floats) -> Floats:
    """The masses of all intervals between neighbouring points, each moved to the ends of its interval."""
    to_right = np.clip(excess / -np.expm1(-np.diff(points)), 0.0, upper)
    masses = np.zeros(len(points))
    masses[1:] = to_right
    masses[:-1] += upper - to_right
    return masses


def normal_masses(edges: Floats) -> Floats:
    """Standard normal probability between neighbouring edges (rising or falling), precise in both tails."""
    tails = special.ndtr(-np.abs(edges))
    left, right = tails[:-1], tails[1:]
    same_side = np.signbit(edges[:-1]) == np.signbit(edges[1:])
    return np.asarray(np.where(same_side, np.abs(left - right), np.maximum(1 - left - right, 0.0)))


class RandomisedResponseLoss(PrivacyLoss):
    """The loss of randomised response."""

    def __init__(self, epsilon: float) -> None:
        losses = np.array([1.0, -1.0]) * max(epsilon, _SMALLEST_EPSILON)
        super().__init__(losses, np.minimum(losses, 0.0) - math.log1p(math.exp(-losses[0])))

    def on_points(self, points: Floats) -> tuple[Floats, float]:
        return split(self.losses, np.exp(self.log_masses), points), 0.0
