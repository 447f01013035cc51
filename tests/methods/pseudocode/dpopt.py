"""DPOPT, Xiang et al. (2019): noise whose shape disturbs the loss least, to first order.

Minimise sum c_i^2 sigma_i^2 subject to sum s_i^2 / sigma_i^2 <= 1 / sigma*^2, where s_i bounds each coordinate of a
record's gradient and c is what the loss changes by along each coordinate: here the last noisy gradient, and nothing in
the first step, where |c| is its floor everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.methods.pseudocode.clips import per_coordinate
from tests.methods.pseudocode.trace import Draws, Gradients, Normals, Trace, Vector

Shape = Callable[[Vector, Vector, float], Vector]  # (bounds, slopes, sigma*) -> sigma


def closed_form(s: Vector, c: Vector, noise_multiplier: float) -> Vector:
    """sigma_i^2 = sigma*^2 (s_i / |c_i|) sum_j s_j |c_j|."""
    return np.asarray(noise_multiplier * np.sqrt(s / np.abs(c) * (s * np.abs(c)).sum()))


def projected_gradient(s: Vector, c: Vector, noise_multiplier: float, *, steps: int = 50, rate: float = 1.0) -> Vector:
    """From equal noise, so many steps x <- P(x - r c^2) in x = sigma^2, P the nearest point that keeps the constraint.

    The objective is linear, so any rate keeps its minimum where it is. Here it is ``rate`` times the mean of x over the
    mean of c^2, which makes the path independent of the scales of c and s.
    """
    x = np.full_like(s, noise_multiplier**2 * (s**2).sum())
    r = rate * x.mean() / (c**2).mean()
    for _ in range(steps):
        x = _nearest(x - r * c**2, s, 1 / noise_multiplier**2)
    return np.sqrt(x)


def _nearest(y: Vector, s: Vector, most: float) -> Vector:
    """The x > 0 nearest to y with sum s_i^2 / x_i <= most: x_i - y_i = k s_i^2 / x_i^2, k found by bisection."""
    if (y > 0).all() and (s**2 / y).sum() <= most:
        return y
    low, high = 0.0, 1.0
    while (s**2 / _root(y, high * s**2)).sum() > most:
        low, high = high, 4 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (s**2 / _root(y, middle * s**2)).sum() > most else (low, middle)
    return _root(y, high * s**2)


def _root(y: Vector, d: Vector) -> Vector:
    """The one x > 0 with x^2 (x - y) = d, by Newton's method from above."""
    x = np.maximum(y, 0) + np.cbrt(d)
    for _ in range(60):
        x = x - (x**2 * (x - y) - d) / (3 * x**2 - 2 * y * x)
    return x


def dpopt(
    w: Vector,
    *,
    gradients: Gradients,
    draws: Draws,
    normals: Normals,
    bounds: Vector,
    shape: Shape,
    noise_multiplier: float,
    batch_size: float,
    slope_floor: float,
    learning_rate: float,
    momentum: float = 0.0,
) -> Trace:
    trace, velocity, g_tilde = Trace(), np.zeros_like(w), np.zeros_like(w)
    for places, normal in zip(draws, normals, strict=True):
        c = np.maximum(np.abs(g_tilde), slope_floor)
        sigma = shape(bounds, c, noise_multiplier)
        g_bar = per_coordinate(bounds)(gradients(w, places))
        g_tilde = (g_bar.sum(axis=0) + sigma * normal) / batch_size
        velocity = momentum * velocity + g_tilde
        w = w - learning_rate * velocity
        trace.note(w, sigma=sigma, g_tilde=g_tilde)
    return trace
