"""What the rules that are the same at every step have in common: they learn nothing."""

from __future__ import annotations

from typing import ClassVar, Self

from lehr.interfaces import PrivateSum, SlotState, Taken, Tensors


class FixedRule:
    """A clip rule that is its own way of clipping."""

    needs_coordinates: ClassVar[bool] = False
    unproven: ClassVar[str | None] = None

    def start(self, parameters: Tensors) -> SlotState:
        return {}

    def rule(self, state: SlotState, step: int) -> Self:
        return self

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        return state

    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:
        return state
