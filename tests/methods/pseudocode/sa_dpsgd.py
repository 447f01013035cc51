"""SA-DPSGD, Fu et al. (2023), Algorithm 2, by its line numbers.

The momentum is not in the box; on a rejection it goes back with the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.methods.pseudocode.annealing import Annealing
from tests.methods.pseudocode.clips import flat
from tests.methods.pseudocode.energy import EnergyChange
from tests.methods.pseudocode.trace import Draws, Gradients, Normals, Trace, Vector


def sa_dpsgd(
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
    trace, velocity = Trace(), np.zeros_like(w)  # line 1
    for t, places in enumerate(draws):  # lines 2, 3, 21
        g = gradients(w, places)  # lines 4, 5
        g_bar = flat(clip_norm)(g)  # line 6
        g_tilde = (g_bar.sum(axis=0) + noise_multiplier * clip_norm * normals[t]) / batch_size  # line 8
        velocity_new = momentum * velocity + g_tilde
        w_new = w - learning_rate * velocity_new  # line 9
        dE = energy_change(w, w_new, t)  # lines 10, 11
        is_accepted = annealing.accepts(dE, uniforms[t])  # lines 12, 13, 15, 16, 19, 22
        if is_accepted:
            w, velocity = w_new, velocity_new  # line 14; otherwise line 18
        trace.note(w, accepted=is_accepted, velocity=velocity, tau=annealing.tau, mu=annealing.mu, Q=annealing.Q)
    return trace
