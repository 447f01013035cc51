"""A network with twelve parameters and its derivatives by hand: two inputs, two tanh units, two classes.

The weights are one vector, in the order of a module with two linear layers: W1 (2 x 2), b1, W2 (2 x 2), b2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.methods.pseudocode.trace import Places, Vector

NUM_PARAMETERS = 12
LAYERS = (np.arange(6), np.arange(6, 12))
TENSORS = (np.arange(4), np.arange(4, 6), np.arange(6, 10), np.arange(10, 12))


@dataclass(frozen=True)
class TinyNetwork:
    """Cross-entropy of the network on some records; ``classes`` are 0 or 1."""

    inputs: Vector
    classes: Places

    def losses(self, w: Vector, places: Places) -> Vector:
        _, logits = self._forward(w, places)
        chosen = logits[np.arange(len(places)), self.classes[places]]
        highest = logits.max(axis=1)
        return np.asarray(highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1)) - chosen)

    def gradients(self, w: Vector, places: Places) -> Vector:
        hidden, logits = self._forward(w, places)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = shares / shares.sum(axis=1, keepdims=True) - np.eye(2)[self.classes[places]]
        before = (errors @ w[TENSORS[2]].reshape(2, 2)) * (1 - hidden**2)
        parts = [_outer(before, self.inputs[places]), before, _outer(errors, hidden), errors]
        return np.concatenate(parts, axis=1)

    def _forward(self, w: Vector, places: Places) -> tuple[Vector, Vector]:
        hidden = np.tanh(self.inputs[places] @ w[TENSORS[0]].reshape(2, 2).T + w[TENSORS[1]])
        return hidden, hidden @ w[TENSORS[2]].reshape(2, 2).T + w[TENSORS[3]]


def _outer(left: Vector, right: Vector) -> Vector:
    return np.asarray((left[:, :, None] * right[:, None, :]).reshape(len(left), 4))
