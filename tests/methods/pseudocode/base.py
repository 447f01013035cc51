"""What every transcription uses: its trace, the clip rules of the papers, and a network with derivatives by hand.

The transcriptions in this folder are the papers' pseudo-code in NumPy and float64, as a second opinion about the
methods of the library; they share nothing with it. All randomness is handed in, so that both can be given the same
numbers. P is the number of parameters, B that of the records drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]
OfRecords: TypeAlias = Callable[[Vector, Indices], Vector]  # (weights_P, indices_B) -> grads_BP or losses_B
Clip: TypeAlias = Callable[[Vector], Vector]  # grads_BP -> grads_BP


@dataclass
class Trace:
    """The weights after every candidate, whether it was accepted, and the state of the method then."""

    weights: list[Vector] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)

    def note(self, weights: Vector, *, accepted: bool = True, **state: Any) -> None:
        self.weights.append(weights.copy())
        self.accepted.append(accepted)
        self.states.append({name: np.copy(value) for name, value in state.items()})


def flat(clip_norm: float) -> Clip:
    """Abadi et al. (2016), Algorithm 1: g / max(1, ||g|| / C)."""
    return lambda grads: grads / np.maximum(1, np.linalg.norm(grads, axis=1, keepdims=True) / clip_norm)


def per_layer(clip_norms: Sequence[float], layers: Sequence[Indices]) -> Clip:
    """Each layer is clipped to its own norm: with L layers C / sqrt(L), so that the whole has norm at most C."""

    def clip(grads: Vector) -> Vector:
        result = np.empty_like(grads)
        for clip_norm, layer in zip(clip_norms, layers, strict=True):
            result[:, layer] = flat(clip_norm)(grads[:, layer])
        return result

    return clip


def automatic(clip_norm: float, stability: float) -> Clip:
    """Bu et al. (2023): C g / (||g|| + gamma). AUTO-S has gamma 0.01, AUTO-V has gamma 0."""
    return lambda grads: grads * clip_norm / (np.linalg.norm(grads, axis=1, keepdims=True) + stability)


def per_coordinate(bounds: Vector) -> Clip:
    """Xu et al. (2020), equation 5: min(max(g_i, -s_i), s_i)."""
    return lambda grads: np.minimum(np.maximum(grads, -bounds), bounds)


NUM_PARAMETERS = 12
LAYERS = (np.arange(6), np.arange(6, 12))
TENSORS = (np.arange(4), np.arange(4, 6), np.arange(6, 10), np.arange(10, 12))


@dataclass(frozen=True)
class TinyNetwork:
    """Cross-entropy of a network on some records: two inputs, two tanh units, two classes.

    The weights are one vector, in the order of a module with two linear layers: W1 (2 x 2), b1, W2 (2 x 2), b2.
    """

    inputs: Vector
    classes: Indices

    def losses(self, w: Vector, indices: Indices) -> Vector:
        _, logits = self._forward(w, indices)
        chosen = logits[np.arange(len(indices)), self.classes[indices]]
        highest = logits.max(axis=1)
        return np.asarray(highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1)) - chosen)

    def gradients(self, w: Vector, indices: Indices) -> Vector:
        hidden, logits = self._forward(w, indices)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = shares / shares.sum(axis=1, keepdims=True) - np.eye(2)[self.classes[indices]]
        before = (errors @ w[TENSORS[2]].reshape(2, 2)) * (1 - hidden**2)
        parts = [_outer(before, self.inputs[indices]), before, _outer(errors, hidden), errors]
        return np.concatenate(parts, axis=1)

    def _forward(self, w: Vector, indices: Indices) -> tuple[Vector, Vector]:
        hidden = np.tanh(self.inputs[indices] @ w[TENSORS[0]].reshape(2, 2).T + w[TENSORS[1]])
        return hidden, hidden @ w[TENSORS[2]].reshape(2, 2).T + w[TENSORS[3]]


def _outer(left: Vector, right: Vector) -> Vector:
    return np.asarray((left[:, :, None] * right[:, None, :]).reshape(len(left), 4))
