"""DPSGD (Abadi et al. 2016, Algorithm 1) with momentum, and the methods that accept only some of its candidates.

SA-DPSGD (Fu et al. 2023, Algorithm 2) and DPSUR (Fu et al. 2024) decide by the change of an energy, J(w_new) - J(w).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tests.methods.pseudocode.base import Clip, Indices, OfRecords, Trace, Vector

Energy: TypeAlias = Callable[[Vector], float]
Change: TypeAlias = Callable[[Vector, Vector, int], float]  # (w, w_new, candidate) -> energy change
Accept: TypeAlias = Callable[[Vector, Vector, int], bool]


def dpsgd(
    w: Vector,
    *,
    gradients: OfRecords,
    draws: Sequence[Indices],
    normals: Sequence[Vector],
    clip: Clip,
    sensitivity: float,
    noise_multiplier: float,
    batch_size: float,
    learning_rate: float,
    momentum: float,
    accept: Accept = lambda w, w_new, t: True,
    is_salvaged: bool = False,
    step_factors: Sequence[float] = (1.0,),
    energy: Energy = lambda w: 0.0,
) -> Trace:
    """On a rejection the momentum goes back with the weights.

    With ``is_salvaged``, noisy sums that were rejected at these weights are averaged into the next one: they have equal
    noise and are unbiased for the same clipped sum. Of several ``step_factors`` the one of least energy is the
    candidate.
    """
    trace, velocity = Trace(), np.zeros_like(w)
    sums: list[Vector] = []  # the noisy sums at w
    for t, indices in enumerate(draws):  # for t in [T]: take a random sample
        g_bar = clip(gradients(w, indices))  # compute gradient, clip gradient
        sums.append(g_bar.sum(axis=0) + noise_multiplier * sensitivity * normals[t])  # add noise
        g_tilde = np.mean(sums, axis=0) / batch_size
        velocity_new = momentum * velocity + g_tilde
        candidates = [w - learning_rate * factor * velocity_new for factor in step_factors]  # descent
        best = int(np.argmin([energy(candidate) for candidate in candidates]))
        is_accepted = accept(w, candidates[best], t)
        if is_accepted:
            w, velocity = candidates[best], velocity_new
        if is_accepted or not is_salvaged:
            sums = []
        trace.note(w, accepted=is_accepted, best=best, num_kept=len(sums))
    return trace


@dataclass
class Annealing:
    """SA-DPSGD, Algorithm 2, lines 12 to 22: tau accepted, mu rejections in a row, Q the inverse temperature.

    ``cooling``: "accepted", the paper's Q0 tau; "floored", Q0 max(tau, 1); "classic", T <- alpha T with Q = 1 / T, as
    in Algorithm 1, line 11.
    """

    change: Change
    uniforms: Sequence[float]
    initial_inverse_temperature: float
    rejection_threshold: int
    cooling: str = "accepted"
    cooling_rate: float = 1.0
    tau: int = 0
    mu: int = 0
    most_rejections: int = 0

    def __post_init__(self) -> None:
        self.Q = self.initial_inverse_temperature  # line 1

    def __call__(self, w: Vector, w_new: Vector, t: int) -> bool:
        # Line 12, with the exponent kept from overflowing where the candidate is accepted surely.
        P = math.exp(min(0.0, -self.change(w, w_new, t) * self.Q))
        is_accepted = self.uniforms[t] <= P or self.mu >= self.rejection_threshold  # line 13
        self.tau, self.mu = (self.tau + 1, 0) if is_accepted else (self.tau, self.mu + 1)  # lines 15, 16, 19
        self.most_rejections = max(self.most_rejections, self.mu)
        if self.cooling == "classic":
            self.Q = self.Q / self.cooling_rate
        else:
            self.Q = self.initial_inverse_temperature * (max(self.tau, 1) if self.cooling == "floored" else self.tau)
        return is_accepted


def public_energy(losses: OfRecords, num_records: int) -> Energy:
    """The mean loss of public records."""
    return lambda w: float(losses(w, np.arange(num_records)).mean())


def private_change(
    losses: OfRecords,
    draws: Sequence[Indices],
    normals: Sequence[float],
    *,
    bound: float,
    noise_multiplier: float,
    divisor: float | None = None,
) -> Change:
    """Each record's loss difference is clipped to the bound, their sum gets noise, and the divisor is public.

    Without a divisor it is DPSUR's published form: the mean difference of the draw is clipped to the bound, so that one
    record can move it by twice the bound. ``draws`` and ``normals`` are the energy's own.
    """

    def change(w: Vector, w_new: Vector, t: int) -> float:
        differences = losses(w_new, draws[t]) - losses(w, draws[t])
        if divisor is not None:
            total = np.clip(differences, -bound, bound).sum() + noise_multiplier * bound * normals[t]
            return float(total / divisor)
        mean = float(differences.mean()) if len(differences) else 0.0  # an empty draw counts as no difference
        return min(max(mean, -bound), bound) + 2 * bound * noise_multiplier * normals[t]

    return change
