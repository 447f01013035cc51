"""DPSUR, Fu et al. (2024): a candidate is taken where a noisy loss difference on a validation draw is low enough.

``published`` clips the mean difference of the draw to the bound C_v, so that one record can move it by 2 C_v, and adds
noise of 2 C_v sigma_v. ``per record`` clips every record's difference, adds noise of C_v sigma_v to the sum, and
divides by a public number. Both accept below beta C_v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tests.methods.pseudocode.clips import flat
from tests.methods.pseudocode.trace import Draws, Gradients, Losses, Normals, Trace, Vector

NoisyDifference = Callable[[Vector, Vector, int], float]  # (w, w_new, candidate) -> noisy difference


def published_difference(
    losses: Losses, draws: Draws, normals: Sequence[float], *, bound: float, noise_multiplier: float
) -> NoisyDifference:
    def difference(w: Vector, w_new: Vector, t: int) -> float:
        places = draws[t]
        # An empty draw has no mean; it counts as no difference.
        mean = float((losses(w_new, places) - losses(w, places)).mean()) if len(places) else 0.0
        return min(max(mean, -bound), bound) + 2 * bound * noise_multiplier * normals[t]

    return difference


def per_record_difference(
    losses: Losses, draws: Draws, normals: Sequence[float], *, bound: float, noise_multiplier: float, divisor: float
) -> NoisyDifference:
    def difference(w: Vector, w_new: Vector, t: int) -> float:
        places = draws[t]
        each = np.clip(losses(w_new, places) - losses(w, places), -bound, bound)
        return float((each.sum() + noise_multiplier * bound * normals[t]) / divisor)

    return difference


def dpsur(
    w: Vector,
    *,
    gradients: Gradients,
    noisy_difference: NoisyDifference,
    draws: Draws,
    normals: Normals,
    acceptance_bound: float,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: float,
    learning_rate: float,
    momentum: float,
) -> Trace:
    """``acceptance_bound`` is beta C_v, with beta -1 in the paper."""
    trace, velocity = Trace(), np.zeros_like(w)
    for t, places in enumerate(draws):
        g_bar = flat(clip_norm)(gradients(w, places))
        g_tilde = (g_bar.sum(axis=0) + noise_multiplier * clip_norm * normals[t]) / batch_size
        velocity_new = momentum * velocity + g_tilde
        w_new = w - learning_rate * velocity_new
        dE = noisy_difference(w, w_new, t)
        is_accepted = dE < acceptance_bound
        if is_accepted:
            w, velocity = w_new, velocity_new
        trace.note(w, accepted=is_accepted, velocity=velocity, dE=dE)
    return trace
