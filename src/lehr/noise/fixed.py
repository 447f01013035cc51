"""What the noises that are the same at every step have in common: they learn nothing."""

from __future__ import annotations

from typing import ClassVar

from lehr.interfaces import SlotState, Taken, Tensors


class FixedNoise:
    """Noise whose multiplier is the plan's. ``needs_bounds`` says that its shape follows bounds of coordinates, and
    ``needs_limit`` that its multiplier follows what was released, so that its cost is not known beforehand.
    """

    needs_bounds: ClassVar[bool] = False
    needs_limit: ClassVar[bool] = False

    def start(self, parameters: Tensors) -> SlotState:
        return {}

    def factor(self, state: SlotState) -> float:
        """What the plan's noise multiplier is multiplied by."""
        return 1.0

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        return state
