"""DPOPT, Xiang et al. (2019): noise whose shape disturbs the loss least, to first order.

Minimise sum c_i^2 sigma_i^2 subject to sum s_i^2 / sigma_i^2 <= 1 / sigma*^2, where s_i bounds each coordinate of a
record's gradient and c is what the loss changes by along each coordinate. Where s and c come from the paper leaves
open; here s is beta times the root of a prior, as in ADADP, and c a running mean of released gradients, no coordinate
of which counts as less than a share of their root mean square.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.methods.pseudocode.adadp import Prior
from tests.methods.pseudocode.clips import flat, per_coordinate
from tests.methods.pseudocode.trace import Draws, Gradients, Normals, Trace, Vector

Shape = Callable[[Vector, Vector, float], Vector]  # (bounds, slopes, sigma*) -> sigma


def closed_form(s: Vector, c: Vector, noise_multiplier: float) -> Vector:
    """sigma_i^2 = sigma*^2 (s_i / |c_i|) sum_j s_j |c_j|."""
    return np.asarray(noise_multiplier * np.sqrt(s / np.abs(c) * (s * np.abs(c)).sum()))


def projected_gradient(
    s: Vector, c: Vector, noise_multiplier: float, *, steps: int = 50, step_size: float = 0.5
) -> Vector:
    """From noise like the bounds, so many steps down the objective, each followed by a projection to the constraint.

    With y_i = s_i^2 sigma*^2 / sigma_i^2 the constraint is sum y_i = 1, and the objective sum (c_i s_i)^2 / y_i up to a
    constant. The geometry is that of relative entropy: a step multiplies, and the projection divides by the sum. The
    derivative along log y_i is measured against its mean, and one step never multiplies by more than e^step_size.
    """
    y = np.full_like(s, 1 / len(s))
    for _ in range(steps):
        slopes = (c * s / y) ** 2
        relative = slopes / (y * slopes).sum() - 1
        y = y * np.exp(step_size * np.minimum(relative, 1.0))
        y = y / y.sum()
    return np.asarray(noise_multiplier * s / np.sqrt(y))


def dpopt(
    w: Vector,
    *,
    gradients: Gradients,
    draws: Draws,
    normals: Normals,
    prior: Prior,
    shape: Shape,
    clip_norm: float,
    local_factor: float | None,
    noise_multiplier: float,
    batch_size: float,
    memory: float,
    least_share: float,
    learning_rate: float,
    momentum: float = 0.0,
) -> Trace:
    trace, velocity, mean = Trace(), np.zeros_like(w), np.zeros_like(w)
    for places, normal in zip(draws, normals, strict=True):
        grads, squares = gradients(w, places), prior.squares()
        if squares is None:
            g_bar = flat(clip_norm)(grads)
            sigma = np.full_like(w, noise_multiplier * clip_norm)
        else:
            s = (local_factor or clip_norm / np.sqrt(squares.sum())) * np.sqrt(squares)
            c = np.maximum(np.abs(mean), least_share * np.sqrt((mean**2).mean()))
            g_bar, sigma = per_coordinate(s)(grads), shape(s, c, noise_multiplier)
        g_tilde = (g_bar.sum(axis=0) + sigma * normal) / batch_size
        prior.learn(raw=grads.sum(axis=0) / batch_size, g_tilde=g_tilde, variance=(sigma / batch_size) ** 2)
        mean = memory * mean + (1 - memory) * g_tilde
        velocity = momentum * velocity + g_tilde
        w = w - learning_rate * velocity
        trace.note(w, sigma=sigma, g_tilde=g_tilde)
    return trace
