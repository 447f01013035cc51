"""ADADP, Xu et al. (2020), Algorithm 1, by its line numbers, and DPOPT, Xiang et al. (2019).

ADADP's box is ambiguous. Here every record is clipped, one noise vector is added to the sum over the lot, g~ is that
over L, and Var is taken over the coordinates. What E' is fed with is the prior's: the raw mean gradient, as published,
or the released one. ADAL has only ADADP's learning rates, ADAN only its noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tests.methods.pseudocode.base import Indices, OfRecords, Trace, Vector, flat, per_coordinate


class Prior(Protocol):
    """E', the expected squares of mean gradients."""

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
class FlooredPrior(RawPrior):
    """Line 23 with g~ squared less the variance of its noise, floored nowhere but where it is read."""

    floor: float = 0.0

    def squares(self) -> Vector | None:
        read = np.maximum(self.E, self.floor)
        return read if np.sqrt(read).var() > self.threshold else None

    def learn(self, *, raw: Vector, g_tilde: Vector, variance: Vector) -> None:
        self.E = self.prior_decay * self.E + (1 - self.prior_decay) * (g_tilde**2 - variance)


@dataclass
class ReleasedPrior:
    """From released sums, in place of lines 23 and 7. Each tensor is given by the indices of its parameters.

    The square of a released mean has the expectation g^2 + v, with v the known variance of its noise, so square - v is
    unbiased. Its running mean starts at zero and is divided by what it has reached of the truth. Around that, each
    coordinate has a known uncertainty: the variance of square - v is 2 v^2 + 4 v g^2. Within each tensor the
    coordinates are drawn towards their mean by the share of their spread that this explains, and none is below
    ``least_share`` of the mean. Clipping is global while the mean over all coordinates is within ``significance``
    standard errors of zero.
    """

    tensors: Sequence[Indices]
    memory: float = 0.99
    least_share: float = 0.1
    significance: float = 3.0
    steps: int = 0

    def __post_init__(self) -> None:
        size = sum(len(tensor) for tensor in self.tensors)
        self.square, self.uncertainty = np.zeros(size), np.zeros(size)

    def learn(self, *, raw: Vector, g_tilde: Vector, variance: Vector) -> None:
        signal = np.maximum(self.square / (1 - self.memory ** max(1, self.steps)), 0)
        self.square = self.memory * self.square + (1 - self.memory) * (g_tilde**2 - variance)
        of_one = 2 * variance**2 + 4 * variance * signal
        self.uncertainty = self.memory**2 * self.uncertainty + (1 - self.memory) ** 2 * of_one
        self.steps += 1

    def squares(self) -> Vector | None:
        if self.steps == 0:
            return None
        reached = 1 - self.memory**self.steps
        square, uncertainty = self.square / reached, self.uncertainty / reached**2
        if square.mean() <= self.significance * np.sqrt(uncertainty.sum()) / len(square):
            return None
        result = np.empty_like(square)
        for tensor in self.tensors:
            mean = max(square[tensor].mean(), self.least_share**2 * square.mean())
            spread = square[tensor].var()
            kept = min(max(1 - uncertainty[tensor].mean() / spread, 0), 1) if spread > 0 else 0.0
            result[tensor] = np.maximum(mean + kept * (square[tensor] - mean), self.least_share * mean)
        return result


Shape = Callable[[Vector, Vector, float], Vector]  # (bounds s, slopes c, sigma*) -> sigma


def proportional(s: Vector, c: Vector, noise_multiplier: float) -> Vector:
    """ADADP, line 12."""
    return np.asarray(noise_multiplier * np.sqrt(len(s)) * s)


def closed_form(s: Vector, c: Vector, noise_multiplier: float) -> Vector:
    """DPOPT: minimise sum c_i^2 sigma_i^2 subject to sum s_i^2 / sigma_i^2 <= 1 / sigma*^2.

    sigma_i^2 = sigma*^2 (s_i / |c_i|) sum_j s_j |c_j|.
    """
    return np.asarray(noise_multiplier * np.sqrt(s / np.abs(c) * (s * np.abs(c)).sum()))


def projected_gradient(s: Vector, c: Vector, noise_multiplier: float) -> Vector:
    """From noise like the bounds, fifty steps down DPOPT's objective, each followed by a projection.

    With y_i = s_i^2 sigma*^2 / sigma_i^2 the constraint is sum y_i = 1, and the objective sum (c_i s_i)^2 / y_i up to a
    constant. The geometry is that of relative entropy: a step multiplies, and the projection divides by the sum. The
    derivative along log y_i is measured against its mean, and one step never multiplies by more than e^0.5.
    """
    y = np.full_like(s, 1 / len(s))
    for _ in range(50):
        slopes = (c * s / y) ** 2
        relative = slopes / (y * slopes).sum() - 1
        y = y * np.exp(0.5 * np.minimum(relative, 1.0))
        y = y / y.sum()
    return np.asarray(noise_multiplier * s / np.sqrt(y))


@dataclass(kw_only=True)
class AdaptiveNoise:
    """ADADP, lines 6 to 20 and 23. Without a prior, clipping is always global.

    The slopes c of DPOPT are a running mean of released gradients; no coordinate counts as less than ``least_share`` of
    their root mean square.
    """

    prior: Prior | None = None
    clip_norm: float  # C
    noise_multiplier: float  # sigma*
    lot_size: float  # L
    local_factor: float | None = 1.2  # beta; without it the bounds have the norm C together
    shape: Shape = proportional
    memory: float = 0.99
    least_share: float = 0.1
    mean: Any = 0.0

    def noisy_mean(self, grads: Vector, normal: Vector) -> tuple[Vector, Vector]:
        """g~, and the standard deviation of the noise in the sum."""
        squares = None if self.prior is None else self.prior.squares()
        if squares is not None:  # line 7
            beta = self.local_factor or self.clip_norm / np.sqrt(squares.sum())
            s = beta * np.sqrt(squares)  # line 9
            c = np.maximum(np.abs(self.mean), self.least_share * np.sqrt((self.mean**2).mean()))
            g_bar, sigma = per_coordinate(s)(grads), self.shape(s, c, self.noise_multiplier)  # lines 10, 12
        else:
            g_bar = flat(self.clip_norm)(grads)  # line 16
            sigma = np.full(len(normal), self.clip_norm * self.noise_multiplier)  # line 18
        g_tilde = (g_bar.sum(axis=0) + sigma * normal) / self.lot_size  # lines 13 and 18
        self.mean = self.memory * self.mean + (1 - self.memory) * g_tilde
        if self.prior is not None:
            raw = grads.sum(axis=0) / self.lot_size
            self.prior.learn(raw=raw, g_tilde=g_tilde, variance=(sigma / self.lot_size) ** 2)  # line 23
        return g_tilde, sigma


@dataclass
class RootMeanSquare:
    """Lines 22 and 25."""

    decay: float = 0.1  # gamma
    smoothing: float = 1e-8  # epsilon_0
    E: Any = field(default=0.0)

    def __call__(self, g_tilde: Vector) -> Vector:
        self.E = (1 - self.decay) * self.E + self.decay * g_tilde**2  # line 22
        return np.asarray(g_tilde / (np.sqrt(self.E) + self.smoothing))  # line 25


@dataclass
class Momentum:
    """The step of SGD."""

    momentum: float = 0.0
    velocity: Any = 0.0

    def __call__(self, g_tilde: Vector) -> Vector:
        self.velocity = self.momentum * self.velocity + g_tilde
        return np.asarray(self.velocity)


def adaptive(
    w: Vector,
    *,
    gradients: OfRecords,
    draws: Sequence[Indices],
    normals: Sequence[Vector],
    noise: AdaptiveNoise,
    step: Callable[[Vector], Vector],
    learning_rate: float,
) -> Trace:
    trace = Trace()
    for indices, normal in zip(draws, normals, strict=True):  # lines 2, 3
        g_tilde, sigma = noise.noisy_mean(gradients(w, indices), normal)  # lines 4 to 20, 23
        w = w - learning_rate * step(g_tilde)  # lines 22, 25, 26
        trace.note(w, sigma=sigma)
    return trace
