"""Every candidate is accepted: plain DPSGD, and every method that does not choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lehr.acceptance.proposal import Decision, Proposal
from lehr.interfaces import ReleasedSum, SlotState


@dataclass(frozen=True)
class Always:
    """Accepts every candidate and asks nothing about it."""

    energy: ClassVar[None] = None
    most_rejections: ClassVar[int] = 0

    def start(self) -> SlotState:
        return {}

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        return released

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        return Decision(1.0, {})

    def to_json(self) -> dict[str, object]:
        return {"kind": "always"}
