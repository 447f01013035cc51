"""Stochastic gradient descent without privacy, as the loop runs it: the sum is divided by the expected batch size."""

from __future__ import annotations

import numpy as np

from tests.methods.pseudocode.trace import Draws, Gradients, Trace, Vector


def plain_sgd(
    w: Vector, *, gradients: Gradients, draws: Draws, learning_rate: float, momentum: float, batch_size: float
) -> Trace:
    trace, velocity = Trace(), np.zeros_like(w)
    for places in draws:
        g = gradients(w, places).sum(axis=0) / batch_size
        velocity = momentum * velocity + g
        w = w - learning_rate * velocity
        trace.note(w, velocity=velocity)
    return trace
