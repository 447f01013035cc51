"""ADADP, Xu et al. (2020), Algorithm 1, by its line numbers; ADAL has only its learning rates, ADAN only its noise.

The box is ambiguous. Here every record is clipped, one noise vector is added to the sum over the lot, g~ is that
over L, and Var is taken over the coordinates. ``prior_from="raw"`` feeds E' with the raw mean gradient, as published;
``"released"`` with g~ squared minus the noise variance known to be in it, never floored where it is added up, only
where it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.methods.pseudocode.clips import flat, per_coordinate
from tests.methods.pseudocode.trace import Draws, Gradients, Normals, Places, Trace, Vector


@dataclass(frozen=True, kw_only=True)
class AdaptiveNoise:
    """Lines 6 to 20 and 23. ``groups`` pool the prior: all parameters of a group read its mean."""

    clip_norm: float  # C
    noise_multiplier: float  # sigma*
    lot_size: float  # L
    local_factor: float = 1.2  # beta
    threshold: float = 1e-6  # G
    prior_decay: float = 0.9  # gamma'
    prior_from: str = "raw"
    floor: float = 0.0
    groups: Sequence[Places] | None = None

    def read(self, prior: Vector) -> Vector:
        pooled = prior.copy()
        for group in self.groups or ():
            pooled[group] = prior[group].mean()
        return np.maximum(pooled, self.floor)

    def noisy_mean(self, grads: Vector, prior: Vector, normal: Vector) -> tuple[Vector, Vector]:
        """g~, and the standard deviation of the noise in the sum."""
        m = len(prior)
        root = np.sqrt(self.read(prior))
        if root.var() > self.threshold:  # line 7
            s = self.local_factor * root  # line 9
            g_bar = per_coordinate(s)(grads)  # line 10
            sigma = self.local_factor * self.noise_multiplier * np.sqrt(m) * root  # line 12
        else:
            g_bar = flat(self.clip_norm)(grads)  # line 16
            sigma = np.full(m, self.clip_norm * self.noise_multiplier)  # line 18
        return (g_bar.sum(axis=0) + sigma * normal) / self.lot_size, sigma  # lines 13 and 18

    def next_prior(self, prior: Vector, grads: Vector, g_tilde: Vector, sigma: Vector) -> Vector:
        """Line 23."""
        if self.prior_from == "raw":
            fed = (grads.sum(axis=0) / self.lot_size) ** 2
        else:
            fed = g_tilde**2 - (sigma / self.lot_size) ** 2
        return np.asarray(self.prior_decay * prior + (1 - self.prior_decay) * fed)


def rmsprop_denominator(E: Vector, smoothing: float, *, is_inside: bool) -> Vector:  # noqa: N803
    """Line 25. The print does not show how far the root reaches."""
    return np.sqrt(E + smoothing) if is_inside else np.sqrt(E) + smoothing


def adadp(
    w: Vector,
    *,
    gradients: Gradients,
    draws: Draws,
    normals: Normals,
    noise: AdaptiveNoise,
    learning_rate: float,
    decay: float = 0.1,
    smoothing: float = 1e-8,
    smoothing_inside_root: bool = False,
) -> Trace:
    trace, E, prior = Trace(), np.zeros_like(w), np.zeros_like(w)  # noqa: N806
    for places, normal in zip(draws, normals, strict=True):  # lines 2, 3
        grads = gradients(w, places)  # lines 4, 5
        g_tilde, sigma = noise.noisy_mean(grads, prior, normal)  # lines 6 to 20
        E = (1 - decay) * E + decay * g_tilde**2  # line 22  # noqa: N806
        prior = noise.next_prior(prior, grads, g_tilde, sigma)  # line 23
        w = w - learning_rate * g_tilde / rmsprop_denominator(E, smoothing, is_inside=smoothing_inside_root)  # 25, 26
        trace.note(w, prior=prior, E=E, sigma=sigma, g_tilde=g_tilde)
    return trace


def adal(
    w: Vector,
    *,
    gradients: Gradients,
    draws: Draws,
    normals: Normals,
    clip_norm: float,
    noise_multiplier: float,
    lot_size: float,
    learning_rate: float,
    decay: float = 0.1,
    smoothing: float = 1e-8,
    smoothing_inside_root: bool = False,
) -> Trace:
    """Lines 15 to 18 in every step, and lines 22, 25 and 26."""
    trace, E = Trace(), np.zeros_like(w)  # noqa: N806
    for places, normal in zip(draws, normals, strict=True):
        g_bar = flat(clip_norm)(gradients(w, places))  # line 16
        g_tilde = (g_bar.sum(axis=0) + clip_norm * noise_multiplier * normal) / lot_size  # line 18
        E = (1 - decay) * E + decay * g_tilde**2  # line 22  # noqa: N806
        w = w - learning_rate * g_tilde / rmsprop_denominator(E, smoothing, is_inside=smoothing_inside_root)  # 25, 26
        trace.note(w, E=E)
    return trace


def adan(
    w: Vector,
    *,
    gradients: Gradients,
    draws: Draws,
    normals: Normals,
    noise: AdaptiveNoise,
    learning_rate: float,
    momentum: float = 0.0,
) -> Trace:
    """Lines 6 to 20 and 23, with the step of SGD."""
    trace, prior, velocity = Trace(), np.zeros_like(w), np.zeros_like(w)
    for places, normal in zip(draws, normals, strict=True):
        grads = gradients(w, places)
        g_tilde, sigma = noise.noisy_mean(grads, prior, normal)  # lines 6 to 20
        prior = noise.next_prior(prior, grads, g_tilde, sigma)  # line 23
        velocity = momentum * velocity + g_tilde
        w = w - learning_rate * velocity
        trace.note(w, prior=prior, sigma=sigma, g_tilde=g_tilde)
    return trace
