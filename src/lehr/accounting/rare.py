"""Composing the losses of steps that rarely sample a record, pair by pair, with full relative precision.

Where a record is hardly ever sampled, almost all losses are tiny and a few are large: no evenly spaced grid holds both,
and the rounding of a Fourier transform exceeds δ. So the points of the grid are scale·sinh(i·WIDTH): evenly spaced
within ``scale`` of zero, in constant ratio beyond. Products of masses are summed directly; nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lehr.accounting.privacy_loss import Floats, SampledGaussianLoss, split

WIDTH = 0.02
LARGEST_NOISE = 1e5  # beyond it rounding hides the difference of the masses with and without a record
LARGEST_LOSS = 64.0  # larger losses count as infinite: at ε below one they differ from it by e⁻⁶³
_NEGLIGIBLE = 1e-9  # of δ: what all steps together may call infinitely lossy, to keep the grid short
_ROUNDING_MARGIN = 1e-6  # of δ, for the rounding of masses, which the number of steps multiplies
_HALVINGS = 110  # of an interval of LARGEST_LOSS, down to 1e-31


class _Law(NamedTuple):
    scale: float
    losses: Floats
    masses: Floats
    infinite_mass: float


def repeated(parts: Sequence[tuple[SampledGaussianLoss, int]], *, delta: float, most: int) -> Callable[[int], float]:
    """ε as a function of how often all parts are repeated, up to ``most`` times: an upper bound."""
    negligible = _NEGLIGIBLE * delta / (most * sum(count for _, count in parts))
    known: dict[tuple[int, int], _Law] = {}

    def power(part: int, count: int) -> _Law:
        if (part, count) not in known:
            if count == 1:
                known[part, 1] = _one_step(parts[part][0], negligible)
            else:
                half = power(part, count // 2)
                even = _compose(half, half, negligible)
                known[part, count] = _compose(even, power(part, 1), negligible) if count % 2 else even
        return known[part, count]

    def epsilon(repeats: int) -> float:
        whole = power(0, repeats * parts[0][1])
        for part in range(1, len(parts)):
            whole = _compose(whole, power(part, repeats * parts[part][1]), negligible)
        return _invert(whole, delta * (1 - _ROUNDING_MARGIN))

    return epsilon


def _one_step(loss: SampledGaussianLoss, negligible: float) -> _Law:
    points = _points(loss.typical, max(loss.smallest, -LARGEST_LOSS), min(loss.largest, LARGEST_LOSS))
    return _shortened(_Law(loss.typical, points, *loss.on_points(points)), negligible)


def _compose(one: _Law, other: _Law, negligible: float) -> _Law:
    """The law of the sum, each pair's mass split between the two points next to it."""
    scale = math.hypot(one.scale, other.scale)
    points = _points(
        scale,
        max(one.losses[0] + other.losses[0], -LARGEST_LOSS),
        min(one.losses[-1] + other.losses[-1], LARGEST_LOSS),
    )
    losses = np.add.outer(one.losses, other.losses).ravel()
    masses = np.multiply.outer(one.masses, other.masses).ravel()
    infinite = one.infinite_mass + other.infinite_mass + float(masses[losses > points[-1]].sum())
    masses[losses > points[-1]] = 0.0
    composed = split(np.clip(losses, points[0], points[-1]), masses, points)
    return _shortened(_Law(scale, points, composed, infinite), negligible)


def _shortened(law: _Law, negligible: float) -> _Law:
    """The same without negligible masses at its ends: the upper ones count as infinite, the lower ones are raised."""
    first = int(np.searchsorted(np.cumsum(law.masses), negligible))
    last = len(law.masses) - int(np.searchsorted(np.cumsum(law.masses[::-1]), negligible))
    masses = law.masses[first:last].copy()
    masses[0] += law.masses[:first].sum()
    return _Law(law.scale, law.losses[first:last], masses, law.infinite_mass + float(law.masses[last:].sum()))


def _points(scale: float, low: float, high: float) -> Floats:
    first, last = math.floor(math.asinh(low / scale) / WIDTH), math.ceil(math.asinh(high / scale) / WIDTH)
    return np.asarray(scale * np.sinh(WIDTH * np.arange(first, last + 1)))


def _invert(law: _Law, delta: float) -> float:
    """The least ε >= 0 at which the hockey-stick divergence is at most ``delta``."""

    def is_within(epsilon: float) -> bool:
        divergence = float(np.maximum(-np.expm1(epsilon - law.losses), 0.0) @ law.masses)
        return divergence + law.infinite_mass <= delta

    low, high = 0.0, max(float(law.losses[-1]), 0.0)
    if is_within(low) or not is_within(high):
        return 0.0 if is_within(low) else math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_within(middle) else (middle, high)
    return high
