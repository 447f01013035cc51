"""Acceptance by noisy-max: of several step sizes, standing still among them, the one that seems best.

AGD, Lee & Kifer (2018), "Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy
Budget". The step sizes are equal parts of the largest one; every so many accepted candidates, the largest becomes a
little more than the largest that was chosen among them, so that it follows what is useful.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lehr import validate
from lehr.acceptance.energy import PrivateChoice, an_energy
from lehr.acceptance.proposal import Decision, Proposal
from lehr.interfaces import ReleasedSum, SlotState


@dataclass(frozen=True, kw_only=True)
class NoisyMax:
    """Chooses among ``step_sizes`` candidates and zero. Scales are relative to the learning rate of the update."""

    energy: PrivateChoice
    step_sizes: int = 20
    largest: float = 2.0
    adapted_every: int = 10
    headroom: float = 0.1

    most_rejections: ClassVar[None] = None

    def __post_init__(self) -> None:
        an_energy(PrivateChoice, energy=self.energy)
        validate.count(step_sizes=self.step_sizes)
        validate.positive(largest=self.largest)
        validate.count(adapted_every=self.adapted_every)
        validate.non_negative(headroom=self.headroom)

    def start(self) -> SlotState:
        return {"largest": float(self.largest), "largest_chosen": 0.0, "accepted": 0}

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        return released

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        largest = float(state["largest"])
        scales = [largest * part / self.step_sizes for part in range(self.step_sizes + 1)]
        chosen = scales[proposal.best(scales)]
        return Decision(chosen, self._after(state, chosen))

    def _after(self, state: SlotState, chosen: float) -> SlotState:
        accepted = int(state["accepted"]) + (chosen != 0)
        largest_chosen = max(float(state["largest_chosen"]), chosen)
        if chosen != 0 and accepted % self.adapted_every == 0:
            return {"largest": (1 + self.headroom) * largest_chosen, "largest_chosen": 0.0, "accepted": accepted}
        return {"largest": float(state["largest"]), "largest_chosen": largest_chosen, "accepted": accepted}

    def to_json(self) -> dict[str, object]:
        return {
            "kind": "noisy max",
            "energy": self.energy.to_json(),
            "step_sizes": self.step_sizes,
            "largest": self.largest,
            "adapted_every": self.adapted_every,
            "headroom": self.headroom,
        }
