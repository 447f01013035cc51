"""The energy change of a candidate, J(w_new) - J(w), for SA-DPSGD: from public records, or from private ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tests.methods.pseudocode.trace import Draws, Losses, Places, Vector

Energy: TypeAlias = Callable[[Vector], float]
EnergyChange: TypeAlias = Callable[[Vector, Vector, int], float]  # (w, w_new, candidate) -> change


def public_energy(losses: Losses, places: Places) -> Energy:
    """The mean loss of public records."""

    def energy(w: Vector) -> float:
        return float(losses(w, places).mean())

    return energy


def public_change(energy: Energy) -> EnergyChange:
    """SA-DPSGD, Algorithm 2, lines 10 and 11."""

    def change(w: Vector, w_new: Vector, candidate: int) -> float:
        return energy(w_new) - energy(w)

    return change


def private_change(
    losses: Losses,
    draws: Draws,
    normals: Sequence[float],
    *,
    bound: float,
    noise_multiplier: float,
    divisor: float,
) -> EnergyChange:
    """Each record's loss difference is clipped to the bound, their sum gets noise, and the divisor is public.

    ``draws`` and ``normals`` are the energy's own: one draw and one number for each candidate.
    """

    def change(w: Vector, w_new: Vector, candidate: int) -> float:
        places = draws[candidate]
        differences = losses(w_new, places) - losses(w, places)
        total = np.clip(differences, -bound, bound).sum() + noise_multiplier * bound * normals[candidate]
        return float(total / divisor)

    return change
