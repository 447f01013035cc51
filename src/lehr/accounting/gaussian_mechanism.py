"""ε of Gaussian noise without sampling, in closed form (Balle & Wang 2018), computed by dp-accounting."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np

_LARGEST_CLOSED_FORM = 1e12


def gaussian_epsilon(squared_mu: float, *, delta: float) -> float:
    """ε of one Gaussian step with (sensitivity / noise)² = ``squared_mu``; never below the truth.

    Several steps compose to one whose ``squared_mu`` is the sum of theirs (Dong, Roth & Su 2022, Corollary 3.3).
    """
    if squared_mu in (0, math.inf):
        return float(squared_mu)
    if squared_mu > _LARGEST_CLOSED_FORM:  # the profile is flat to a double; this is the bound of zCDP
        return squared_mu / 2 + math.sqrt(-2 * squared_mu * math.log(delta))
    with np.errstate(all="ignore"):
        root = float(dp_accounting.get_epsilon_gaussian(squared_mu**-0.5, delta))
    return root * (1 + 1e-9) + 1e-12 if root else 0.0  # its root finder may stop this much below the root
