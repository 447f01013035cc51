"""What the clips that learn nothing have in common: rules that are the same at every step, and scheduled ones."""

from __future__ import annotations

from typing import ClassVar, Self

from lehr.interfaces import PrivateSum, SlotState, Taken, Tensors


class LearnsNothing:
    """A way of clipping without a state."""

    needs_coordinates: ClassVar[bool] = False
    unproven: ClassVar[str | None] = None

    def start(self, parameters: Tensors) -> SlotState:
        return {}

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        return state

    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:
        return state


class FixedRule(LearnsNothing):
    """A clip rule that is its own way of clipping."""

    def rule(self, state: SlotState, step: int) -> Self:
        return self
