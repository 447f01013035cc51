"""ADADP, Xu et al. (2020), Algorithm 1, by its line numbers; ADAL has only its learning rates, ADAN only its noise.

The box is ambiguous. Here every record is clipped, one noise vector is added to the sum over the lot, g~ is that over
L, and Var is taken over the coordinates. What E' is fed with is the prior's: the raw mean gradient, as published, or
what was released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tests.methods.pseudocode.clips import flat, per_coordinate
from tests.methods.pseudocode.trace import Draws, Gradients, Normals, Trace, Vector


class Prior(Protocol):
    """E', what is known about the squares of mean gradients."""

    def squares(self) -> Vector | None:
        """E' where it is read; nothing while clipping is global."""

    def learn(self, *, raw: Vector, g_tilde: Vector, variance: Vector) -> None:
        """From the raw mean gradient, the released one, and the variance of the noise in that."""


@dataclass
class RawPrior:
    """Line 23 as printed, and line 7."""

    num_parameters: int
    prior_decay: float = 0.9  # gamma'
    threshold: float = 1e-6  # G

    def __post_init__(self) -> None:
        self.E = np.zeros(self.num_parameters)  # equation 4

    def squares(self) -> Vector | None:
        return self.E if np.sqrt(self.E).var() > self.threshold else None  # line 7

    def learn(self, *, raw: Vector, g_tilde: Vector, variance: Vector) -> None:
        self.E = self.prior_decay * self.E + (1 - self.prior_decay) * raw**2  # line 23


@dataclass
class FlooredPrior:
    """Line 23 with g~ squared less the variance of its noise, floored nowhere but where it is read."""

    num_parameters: int
    floor: float
    prior_decay: float = 0.9
    threshold: float = 1e-6

    def __post_init__(self) -> None:
        self.E = np.zeros(self.num_parameters)

    def squares(self) -> Vector | None:
        read = np.maximum(self.E, self.floor)
        return read if np.sqrt(read).var() > self.threshold else None

    def learn(self, *, raw: Vector, g_tilde: Vector, variance: Vector) -> None:
        self.E = self.prior_decay * self.E + (1 - self.prior_decay) * (g_tilde**2 - variance)


@dataclass(frozen=True, kw_only=True)
class AdaptiveNoise:
    """Lines 6 to 20 and 23."""

    prior: Prior
    clip_norm: float  # C
    noise_multiplier: float  # sigma*
    lot_size: float  # L
    local_factor: float | None = 1.2  # beta; without it the bounds have the norm C together

    def noisy_mean(self, grads: Vector, normal: Vector) -> tuple[Vector, Vector]:
        """g~, and the standard deviation of the noise in the sum. The prior learns from it."""
        m, squares = len(normal), self.prior.squares()
        if squares is not None:  # line 7
            beta = self.local_factor or self.clip_norm / np.sqrt(squares.sum())
            s = beta * np.sqrt(squares)  # line 9
            g_bar = per_coordinate(s)(grads)  # line 10
            sigma = beta * self.noise_multiplier * np.sqrt(m * squares)  # line 12
        else:
            g_bar = flat(self.clip_norm)(grads)  # line 16
            sigma = np.full(m, self.clip_norm * self.noise_multiplier)  # line 18
        g_tilde = (g_bar.sum(axis=0) + sigma * normal) / self.lot_size  # lines 13 and 18
        raw = grads.sum(axis=0) / self.lot_size
        self.prior.learn(raw=raw, g_tilde=g_tilde, variance=(sigma / self.lot_size) ** 2)  # line 23
        return g_tilde, sigma


@dataclass
class RootMeanSquare:
    """Lines 22 and 25. The print does not show how far the root of line 25 reaches."""

    decay: float = 0.1  # gamma
    smoothing: float = 1e-8  # epsilon_0
    smoothing_inside_root: bool = False
    E: Vector | float = 0.0

    def step(self, g_tilde: Vector) -> Vector:
        self.E = (1 - self.decay) * self.E + self.decay * g_tilde**2  # line 22
        if self.smoothing_inside_root:
            return np.asarray(g_tilde / np.sqrt(self.E + self.smoothing))  # line 25
        return np.asarray(g_tilde / (np.sqrt(self.E) + self.smoothing))  # line 25


def adadp(
    w: Vector,
    *,
    gradients: Gradients,
    draws: Draws,
    normals: Normals,
    noise: AdaptiveNoise,
    rates: RootMeanSquare,
    learning_rate: float,
) -> Trace:
    trace = Trace()
    for places, normal in zip(draws, normals, strict=True):  # lines 2, 3
        g_tilde, sigma = noise.noisy_mean(gradients(w, places), normal)  # lines 4 to 20, 23
        w = w - learning_rate * rates.step(g_tilde)  # lines 22, 25, 26
        trace.note(w, sigma=sigma, g_tilde=g_tilde)
    return trace


def adal(
    w: Vector,
    *,
    gradients: Gradients,
    draws: Draws,
    normals: Normals,
    rates: RootMeanSquare,
    clip_norm: float,
    noise_multiplier: float,
    lot_size: float,
    learning_rate: float,
) -> Trace:
    """Lines 15 to 18 in every step, and lines 22, 25 and 26."""
    trace = Trace()
    for places, normal in zip(draws, normals, strict=True):
        g_bar = flat(clip_norm)(gradients(w, places))  # line 16
        g_tilde = (g_bar.sum(axis=0) + clip_norm * noise_multiplier * normal) / lot_size  # line 18
        w = w - learning_rate * rates.step(g_tilde)  # lines 22, 25, 26
        trace.note(w)
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
    trace, velocity = Trace(), np.zeros_like(w)
    for places, normal in zip(draws, normals, strict=True):
        g_tilde, sigma = noise.noisy_mean(gradients(w, places), normal)  # lines 4 to 20, 23
        velocity = momentum * velocity + g_tilde
        w = w - learning_rate * velocity
        trace.note(w, sigma=sigma, g_tilde=g_tilde)
    return trace
