"""AGD's noise: after a measurement that no step size could use, the next one is finer.

Lee & Kifer (2018), "Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy Budget".
In zero-concentrated terms a measurement with noise multiplier σ costs 1 / 2σ². Where it led nowhere, the cost of one
good measurement is raised by the share ``growth`` for good, and only the difference is measured at the same weights:
averaged by their precisions, the two are worth the whole. What a measurement costs so follows from what was released,
and the run is charged against a filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lehr import validate
from lehr.interfaces import SlotState, Taken, Tensors
from lehr.noise.isotropic import IsotropicNoise


@dataclass(frozen=True, kw_only=True)
class BudgetedNoise(IsotropicNoise):
    """Isotropic noise whose multiplier falls where candidates are refused. The state has costs over the first one's.

    >>> noise, refused = BudgetedNoise(growth=0.1), {"whole": 1.1, "next": 0.1}
    >>> round(noise.factor(refused), 3)  # the difference alone is a tenth, and so has √10 times the noise
    3.162
    """

    growth: float = 0.1

    needs_limit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        validate.positive(growth=self.growth)

    def start(self, parameters: Tensors) -> SlotState:
        return {"whole": 1.0, "next": 1.0}

    def factor(self, state: SlotState) -> float:
        return 1 / math.sqrt(float(state["next"]))

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        whole = float(state["whole"])
        if taken.is_accepted:
            return {"whole": whole, "next": whole}
        return {"whole": (1 + self.growth) * whole, "next": self.growth * whole}
