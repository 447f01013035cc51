"""What one record may add to a sum: the clip rules of the papers, each from grads_BP to grads_BP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tests.methods.pseudocode.trace import Places, Vector

Clip: TypeAlias = Callable[[Vector], Vector]


def flat(clip_norm: float) -> Clip:
    """Abadi et al. (2016), Algorithm 1: g / max(1, ||g|| / C)."""

    def clipped(grads: Vector) -> Vector:
        norms = np.linalg.norm(grads, axis=1, keepdims=True)
        return np.asarray(grads / np.maximum(1, norms / clip_norm))

    return clipped


def per_layer(clip_norms: Sequence[float], layers: Sequence[Places]) -> Clip:
    """Each layer, given by the places of its parameters, is clipped to a norm of its own; with L layers, C / sqrt(L).

    The whole has norm at most sqrt(sum of C_l squared).
    """

    def clipped(grads: Vector) -> Vector:
        result = np.empty_like(grads)
        for clip_norm, layer in zip(clip_norms, layers, strict=True):
            result[:, layer] = flat(clip_norm)(grads[:, layer])
        return result

    return clipped


def automatic(clip_norm: float, stability: float) -> Clip:
    """Bu et al. (2023): C g / (||g|| + gamma). AUTO-S has gamma 0.01, AUTO-V has gamma 0."""

    def clipped(grads: Vector) -> Vector:
        norms = np.linalg.norm(grads, axis=1, keepdims=True)
        return np.asarray(grads * clip_norm / (norms + stability))

    return clipped


def per_coordinate(bounds: Vector) -> Clip:
    """Xu et al. (2020), equation 5: min(max(g_i, -s_i), s_i)."""

    def clipped(grads: Vector) -> Vector:
        return np.minimum(np.maximum(grads, -bounds), bounds)

    return clipped
