"""Every candidate is accepted: plain DPSGD, and every method that does not choose."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.acceptance.proposal import Proposal, State


@dataclass(frozen=True)
class Always:
    """Accepts every candidate and asks nothing about it."""

    @property
    def needs_energy(self) -> bool:
        return False

    def start(self) -> dict[str, float]:
        return {}

    def decide(self, state: State, proposal: Proposal) -> tuple[bool, dict[str, float]]:
        return True, {}

    def to_json(self) -> dict[str, object]:
        return {"kind": "always"}
