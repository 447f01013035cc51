"""The acceptance of SA-DPSGD (Fu et al. 2023): Algorithm 2, lines 12 to 22, and the cooling of Algorithm 1, line 11."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Annealing:
    """tau accepted so far, mu rejections in a row, Q the inverse temperature.

    ``cooling``: "accepted", the paper's Q0 tau; "floored", Q0 max(tau, 1); "classic", T <- alpha T with Q = 1 / T.
    """

    initial_inverse_temperature: float
    rejection_threshold: int
    cooling: str = "accepted"
    cooling_rate: float = 1.0
    tau: int = 0
    mu: int = 0

    def __post_init__(self) -> None:
        self.Q = self.initial_inverse_temperature  # line 1

    def accepts(self, energy_change: float, uniform: float) -> bool:
        # Line 12, with the exponent kept from overflowing where the candidate is accepted surely.
        P = math.exp(min(0.0, -energy_change * self.Q))
        if uniform <= P or self.mu >= self.rejection_threshold:  # line 13
            self.tau += 1  # line 15
            self.mu = 0  # line 16
            is_accepted = True
        else:
            self.mu += 1  # line 19
            is_accepted = False
        self._cool()
        return is_accepted

    def _cool(self) -> None:
        if self.cooling == "classic":
            self.Q = self.Q / self.cooling_rate  # Algorithm 1, line 11
        elif self.cooling == "floored":
            self.Q = self.initial_inverse_temperature * max(self.tau, 1)
        else:
            self.Q = self.initial_inverse_temperature * self.tau  # line 22
