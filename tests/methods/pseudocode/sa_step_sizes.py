"""SA-DPSGD with several step sizes of one noisy gradient: the one of lowest public energy is the candidate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.methods.pseudocode.annealing import Annealing
from tests.methods.pseudocode.clips import flat
from tests.methods.pseudocode.energy import Energy
from tests.methods.pseudocode.trace import Draws, Gradients, Normals, Trace, Vector


def sa_step_sizes(
    w: Vector,
    *,
    gradients: Gradients,
    energy: Energy,
    draws: Draws,
    normals: Normals,
    uniforms: Sequence[float],
    annealing: Annealing | None,
    step_factors: Sequence[float],
    clip_norm: float,
    noise_multiplier: float,
    batch_size: float,
    learning_rate: float,
    momentum: float,
) -> Trace:
    """The factors multiply the learning rate. Where energies are equal the first wins. No annealing: always taken."""
    trace, velocity = Trace(), np.zeros_like(w)
    for t, places in enumerate(draws):
        g_bar = flat(clip_norm)(gradients(w, places))
        g_tilde = (g_bar.sum(axis=0) + noise_multiplier * clip_norm * normals[t]) / batch_size
        velocity_new = momentum * velocity + g_tilde
        candidates = [w - learning_rate * factor * velocity_new for factor in step_factors]
        best = int(np.argmin([energy(candidate) for candidate in candidates]))
        w_new = candidates[best]
        is_accepted = annealing is None or annealing.accepts(energy(w_new) - energy(w), uniforms[t])
        if is_accepted:
            w, velocity = w_new, velocity_new
        trace.note(w, accepted=is_accepted, velocity=velocity, best=best)
    return trace
