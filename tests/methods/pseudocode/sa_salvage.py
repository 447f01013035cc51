"""SA-DPSGD with salvage: noisy gradients that were rejected at these weights are averaged into the next one.

They have equal noise and are unbiased for the same clipped sum over all records, so the weights of the average are
equal. Acceptance starts the average anew, for then the weights are others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.methods.pseudocode.annealing import Annealing
from tests.methods.pseudocode.clips import flat
from tests.methods.pseudocode.energy import EnergyChange
from tests.methods.pseudocode.trace import Draws, Gradients, Normals, Trace, Vector


def sa_salvage(
    w: Vector,
    *,
    gradients: Gradients,
    energy_change: EnergyChange,
    draws: Draws,
    normals: Normals,
    uniforms: Sequence[float],
    annealing: Annealing,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: float,
    learning_rate: float,
    momentum: float,
) -> Trace:
    trace, velocity = Trace(), np.zeros_like(w)
    kept: list[Vector] = []  # the noisy sums drawn at w
    for t, places in enumerate(draws):
        g_bar = flat(clip_norm)(gradients(w, places))
        kept.append(g_bar.sum(axis=0) + noise_multiplier * clip_norm * normals[t])
        g_tilde = np.mean(kept, axis=0) / batch_size
        velocity_new = momentum * velocity + g_tilde
        w_new = w - learning_rate * velocity_new
        is_accepted = annealing.accepts(energy_change(w, w_new, t), uniforms[t])
        if is_accepted:
            w, velocity, kept = w_new, velocity_new, []
        state = {"tau": annealing.tau, "mu": annealing.mu, "Q": annealing.Q, "num_kept": len(kept)}
        trace.note(w, accepted=is_accepted, velocity=velocity, **state)
    return trace
