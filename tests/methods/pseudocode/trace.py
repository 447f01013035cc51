"""What a transcription is given and what it leaves behind.

The transcriptions in this folder are the papers' pseudo-code in NumPy and float64, line by line, as a second opinion
about the methods of the library; they share nothing with it. All randomness is handed in, so that both can be given the
same numbers. P is the number of parameters, B that of the records drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.float64]
Places: TypeAlias = npt.NDArray[np.int64]
Gradients: TypeAlias = Callable[[Vector, Places], Vector]  # (weights_P, indices_B) -> grads_BP
Losses: TypeAlias = Callable[[Vector, Places], Vector]  # (weights_P, indices_B) -> losses_B
Draws: TypeAlias = Sequence[Places]  # draws[t]: the records of candidate t
Normals: TypeAlias = Sequence[Vector]  # normals[t]: standard normal numbers, one for each parameter


@dataclass
class Trace:
    """The weights after every candidate, whether it was accepted, and what the method remembered then."""

    weights: list[Vector] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)

    def note(self, weights: Vector, *, accepted: bool = True, **state: Any) -> None:
        self.weights.append(weights.copy())
        self.accepted.append(accepted)
        self.states.append({name: np.copy(value) for name, value in state.items()})
