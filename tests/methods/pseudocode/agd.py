"""DP-AGD, Lee and Kifer (2018), Algorithm 2: a budget in zCDP that grows where the gradient is too noisy to follow.

The noise of a Gaussian release with sensitivity C and budget rho is C / sqrt(2 rho). One entry of the trace is one
noisy-max, whether it took a step or asked for a better gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.methods.pseudocode.base import Indices, OfRecords, Trace, Vector, flat


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The whole budget, what a first gradient and what a noisy-max take of it, and the growth gamma."""

    total: float
    gradient: float
    noisy_max: float
    growth: float = 0.1


@dataclass
class StepSizes:
    """Phi: zero and equal parts of the largest. After every so many steps the largest is ``(1 + headroom)`` times the
    largest that was chosen among them."""

    count: int = 20
    largest: float = 2.0
    adapted_every: int = 10
    headroom: float = 0.1

    def __post_init__(self) -> None:
        self._chosen: list[float] = []

    def all(self) -> list[float]:
        return [self.largest * part / self.count for part in range(self.count + 1)]

    def took(self, step_size: float) -> None:
        self._chosen.append(step_size)
        if len(self._chosen) == self.adapted_every:
            self.largest = (1 + self.headroom) * max(self._chosen)
            self._chosen = []


def agd(
    w: Vector,
    *,
    gradients: OfRecords,
    losses: OfRecords,
    draws: Sequence[Indices],
    normals: Sequence[Vector],
    noises: Sequence[Vector],
    loss_draws: Sequence[Indices],
    budget: Budget,
    step_sizes: StepSizes,
    grad_clip: float,
    loss_clip: float,
) -> Trace:
    """``noises[t]`` has a standard Laplace number for each step size, of noisy-max t.

    ``draws`` and ``loss_draws`` are all records in the paper, every time. The run ends where the budget does not reach
    for what comes next.
    """
    trace, rho, rho_ng = Trace(), budget.total, budget.gradient
    mean, precision = np.zeros_like(w), 0.0  # the average of the gradients measured at w, and the budget in it
    for t, indices in enumerate(draws):
        # The first gradient at w costs rho_ng; another one gamma times what is in the average already, GradAvg.
        cost = rho_ng if precision == 0 else budget.growth * precision
        rho = rho - cost - budget.noisy_max
        if rho < 0:
            break
        noise_std = grad_clip / np.sqrt(2 * cost)
        measured = flat(grad_clip)(gradients(w, indices)).sum(axis=0) + noise_std * normals[t]
        mean = (precision * mean + cost * measured) / (precision + cost)
        precision = precision + cost
        direction = mean / np.linalg.norm(mean)

        sizes = step_sizes.all()
        values = [np.clip(losses(w - size * direction, loss_draws[t]), 0, loss_clip).sum() for size in sizes]
        scale = loss_clip / np.sqrt(2 * budget.noisy_max)
        chosen = int(np.argmax(-np.array(values) + scale * noises[t]))  # NoisyMax(-Omega)
        if chosen > 0:
            w = w - sizes[chosen] * direction
            step_sizes.took(sizes[chosen])
            rho_ng, precision = precision, 0.0
        trace.note(w, accepted=chosen > 0, rho=rho, chosen=chosen, precision=precision)
    return trace
