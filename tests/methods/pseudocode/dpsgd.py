"""DPSGD, Abadi et al. (2016), Algorithm 1, with the momentum of SGD. Line numbers are those of lines with text.

With another clip it is DPSGD per layer (sensitivity: the norm of all bounds), AUTO-S and AUTO-V.
"""

from __future__ import annotations

import numpy as np

from tests.methods.pseudocode.clips import Clip
from tests.methods.pseudocode.trace import Draws, Gradients, Normals, Trace, Vector


def dpsgd(
    w: Vector,
    *,
    gradients: Gradients,
    draws: Draws,
    normals: Normals,
    clip: Clip,
    sensitivity: float,
    noise_multiplier: float,
    batch_size: float,
    learning_rate: float,
    momentum: float,
) -> Trace:
    trace, velocity = Trace(), np.zeros_like(w)
    for places, normal in zip(draws, normals, strict=True):  # for t in [T]: take a random sample
        g = gradients(w, places)  # compute gradient
        g_bar = clip(g)  # clip gradient
        g_tilde = (g_bar.sum(axis=0) + noise_multiplier * sensitivity * normal) / batch_size  # add noise
        velocity = momentum * velocity + g_tilde
        w = w - learning_rate * velocity  # descent
        trace.note(w, velocity=velocity)
    return trace
