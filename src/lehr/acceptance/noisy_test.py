"""Acceptance by a noisy test: a candidate is taken if the loss on private records is seen to fall by enough.

DPSUR, Fu et al. (2024), "DPSUR: Accelerating Differentially Private Stochastic Gradient Descent Using Selective Update
and Release". The paper charges accepted candidates alone; that is not a guarantee, for the same reason as in SA-DPSGD.
Here each candidate is charged for its gradient and for its test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lehr import validate
from lehr.acceptance.energy import EnergyOfOne, PrivateEnergy, PublicEnergy, an_energy
from lehr.acceptance.proposal import Decision, Proposal
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, SlotState


@dataclass(frozen=True, kw_only=True)
class NoisyTest:
    """Accepts where the change of the energy is below ``threshold`` times its clip; DPSUR has -1."""

    energy: EnergyOfOne
    threshold: float = -1.0

    most_rejections: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not -1e6 <= validate.finite(threshold=self.threshold) <= 1e6:
            raise InvalidValue("threshold", allowed="a number of clips", given=self.threshold)
        an_energy(PublicEnergy, PrivateEnergy, energy=self.energy)

    def start(self) -> SlotState:
        return {"accepted": 0}

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        return released

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        unit = self.energy.loss_clip if isinstance(self.energy, PrivateEnergy) else 1.0
        is_accepted = proposal.change() <= self.threshold * unit
        return Decision(float(is_accepted), {"accepted": float(state["accepted"]) + is_accepted})

    def to_json(self) -> dict[str, object]:
        return {"kind": "noisy test", "threshold": self.threshold, "energy": self.energy.to_json()}
