"""The privacy loss of an epoch of balls-in-bins sampling, exactly in law and on a grid from above.

Every record goes to one of k bins, uniformly and independently; step i of the epoch releases the sum over bin i with
Gaussian noise. The worst neighbours release a draw from N(0, σ²·I) in k dimensions, or from the mean of the k laws
N(e_i, σ²·I), whatever later steps do with what earlier ones released (Chua et al. 2024). Their densities have the ratio

    S = (L₁ + … + L_k) / k,    L_i = e^((2·x_i − 1) / (2σ²)),

which without the record is a mean of k independent lognormal numbers of mean one. The hockey-stick divergence of
removing is E[(S − e^ε)₊], that of adding is E[(1 − e^ε·S)₊]: both are means of convex functions of S. So every change
of an L or of a sum of them that keeps its conditional mean, such as sharing each mass between two points of a grid, can
only raise both. The law of the sum is computed by doubling, on grids with such splits. All terms are positive, so that
nothing cancels, and masses keep their relative precision however small they are.

>>> loss = BallsInBinsLoss(bins=10, noise_multiplier=1.0, direction=Direction.REMOVE, delta=1e-5)
>>> bool(abs(loss.log_moment(-1.0)) < 1e-6)  # the probabilities of the other neighbour have the sum one
True
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special

from lehr.accounting.privacy_loss import Direction, Floats, PrivacyLoss, normal_masses, split

LARGEST_BINS = 10**5
SMALLEST_NOISE, LARGEST_NOISE = 0.2, 1e4  # less is not counted, more counts as this much
WIDTH = 0.02  # of the grids: between points, relative to their distance from zero or from the mean
_LOG_TAIL_PER_DELTA = -20.0  # of the mass that is moved to zero or to infinity at a time: below δ·3e-9
_ROUNDING = 1e-10  # relative, of a mass of one bin: more than sums of 10⁶ positive terms can be off
_ROUNDING_OF_LOSSES = 1e-12  # far more than the means of 40 splits can be off


class _Sum(NamedTuple):
    """Masses at the values of a sum of ``bins`` numbers L, and the part of its mean that counts as infinite."""

    bins: int
    values: Floats
    masses: Floats
    infinite_mean: float


class BallsInBinsLoss(PrivacyLoss):
    """The loss of one epoch, in one direction."""

    def __init__(self, *, bins: int, noise_multiplier: float, direction: Direction, delta: float) -> None:
        law = _law(bins, noise_multiplier, delta)
        ratios, slack = law.values[1:] / bins, 1 + bins * _ROUNDING
        with np.errstate(divide="ignore"):
            log_ratios, log_masses = np.log(ratios), np.log(law.masses[1:] * slack)
        if direction is Direction.REMOVE:
            self._infinite_mass = law.infinite_mean / bins * slack
            super().__init__(log_ratios + _ROUNDING_OF_LOSSES, log_masses + log_ratios)
        else:
            self._infinite_mass = float(law.masses[0]) * slack
            super().__init__(_ROUNDING_OF_LOSSES - log_ratios, log_masses)

    def on_points(self, points: Floats) -> tuple[Floats, float]:
        return split(self.losses, np.exp(self.log_masses), points), self._infinite_mass


@lru_cache(maxsize=64)  # both directions share it
def _law(bins: int, sigma: float, delta: float) -> _Sum:
    """The law of the sum over all bins, by doubling: the bits of ``bins`` from the highest."""
    log_tail = math.log(delta) + _LOG_TAIL_PER_DELTA
    reach, negligible = float(-special.ndtri_exp(log_tail)), math.exp(log_tail)

    def added(one: _Sum, other: _Sum) -> _Sum:
        return _shortened(_added(one, other, _grid(one.bins + other.bins, sigma, reach)), negligible)

    single = _shortened(_one(sigma, _grid(1, sigma, reach)), negligible)
    whole = single
    for bit in f"{bins:b}"[1:]:
        whole = added(whole, whole)
        if bit == "1":
            whole = added(whole, single)
    return whole


def _one(sigma: float, values: Floats) -> _Sum:
    """L on a grid: each interval keeps its mass and its mean, and so does what lies below and beyond the grid."""
    edges = sigma * np.log(values[1:]) + 0.5 / sigma  # of x/σ
    masses, means = normal_masses(edges), normal_masses(edges - 1 / sigma)
    low, high = values[1:-1], values[2:]
    to_right = np.clip((means - low * masses) / (high - low), 0.0, masses)
    found = np.zeros(len(values))
    found[2:] = to_right
    found[1:-1] += masses - to_right
    below, mean_below = special.ndtr(edges[0]), special.ndtr(edges[0] - 1 / sigma)
    up = min(mean_below / values[1], below)
    found[0] += below - up
    found[1] += up
    beyond, mean_beyond = special.ndtr(-edges[-1]), special.ndtr(1 / sigma - edges[-1])
    found[0] += beyond  # its mean goes to infinity
    return _Sum(1, values, found, float(mean_beyond))


def _added(one: _Sum, other: _Sum, points: Floats) -> _Sum:
    """The sum of two independent sums, each pair's mass shared by the two points next to it; its mean is kept."""
    values = np.add.outer(one.values, other.values).ravel()
    masses = np.multiply.outer(one.masses, other.masses).ravel()
    is_beyond = values > points[-1]
    infinite = one.infinite_mean + other.infinite_mean + float(values[is_beyond] @ masses[is_beyond])
    values[is_beyond] = 0.0
    left = np.clip(np.searchsorted(points, values, side="right") - 1, 0, len(points) - 2)
    to_right = np.clip((values - points[left]) / (points[left + 1] - points[left]), 0.0, 1.0) * masses
    shared = np.bincount(left, masses - to_right, len(points)) + np.bincount(left + 1, to_right, len(points))
    return _Sum(one.bins + other.bins, points, np.asarray(shared, dtype=np.float64), infinite)


def _shortened(law: _Sum, negligible: float) -> _Sum:
    """The same with fewer points: small values of little mass are split, large ones of little mean go to infinity."""
    first = max(1, int(np.searchsorted(np.cumsum(law.masses[1:]), negligible)))
    means = law.values * law.masses
    last = len(means) - int(np.searchsorted(np.cumsum(means[::-1]), negligible * law.bins))
    values, masses = np.delete(law.values[:last], slice(1, first)), np.delete(law.masses[:last], slice(1, first))
    up = float(means[1:first].sum()) / values[1]
    masses[1] += up
    masses[0] += float(law.masses[1:first].sum()) - up + float(law.masses[last:].sum())
    return _Sum(law.bins, values, masses, law.infinite_mean + float(means[last:].sum()))


def _grid(bins: int, sigma: float, reach: float) -> Floats:
    """Zero, points in constant ratio, and points around the mean that lie closer. Any points make a valid bound."""
    deviation = math.sqrt(bins * math.expm1(min(sigma**-2, 100.0)))
    lowest = bins * math.exp(-reach / sigma - 0.5 / sigma**2)
    highest = bins + reach * deviation + math.exp(reach / sigma + 0.5 / sigma**2)  # the others, and the shifted one
    in_ratio = np.exp(np.arange(math.log(lowest), math.log(highest) + WIDTH, WIDTH))
    scale = min(deviation, bins)
    ends = math.asinh((lowest - bins) / scale), math.asinh((highest - bins) / scale)
    around_mean = bins + scale * np.sinh(np.arange(ends[0], ends[1], WIDTH))
    both = np.unique(np.concatenate([in_ratio, around_mean[around_mean > lowest]]))
    apart = np.concatenate([[True], np.diff(both) > 0.1 * WIDTH * np.minimum(both[1:], scale)])
    return np.concatenate([[0.0], both[apart]])
