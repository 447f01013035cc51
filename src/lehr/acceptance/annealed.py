"""Acceptance by simulated annealing: a candidate with a higher energy is accepted only sometimes.

SA-DPSGD (Fu et al. 2022), Algorithm 2. A candidate that raises the energy by dE is accepted with probability
e^(-dE Q), and surely after ``rejection_threshold`` rejections in a row. The inverse temperature Q follows a cooling:

- ``accepted``: the paper's. Q0 for the first candidate, then Q0 times the number accepted so far, which is zero, and
  acceptance sure, until something has been accepted.
- ``floored``: Q0 times the number accepted, or Q0 where that is none.
- ``classic``: the paper's Algorithm 1. The temperature 1 / Q is multiplied by ``cooling_rate`` after every candidate.

The energy is the mean loss on public records, or one from private records that is clipped, noised and charged.

A candidate whose energy is not a number is never accepted, not even after that many rejections: those weights would
end the run. The next one whose energy is a number is then accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from lehr import validate
from lehr.acceptance.energy import EnergyOfOne, PrivateEnergy, PublicEnergy, an_energy
from lehr.acceptance.proposal import Decision, Proposal
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, SlotState

_COOLINGS = ("accepted", "floored", "classic")
_COLDEST = 1e300


@dataclass(frozen=True, kw_only=True)
class Annealed:
    """Simulated annealing over an energy. ``cooling_rate`` belongs to the classic cooling.

    >>> Annealed(initial_inverse_temperature=10.0).start()
    {'accepted': 0, 'rejected_in_a_row': 0, 'inverse_temperature': 10.0}
    """

    initial_inverse_temperature: float = 10.0
    rejection_threshold: int = 10
    cooling: Literal["accepted", "floored", "classic"] = "accepted"
    cooling_rate: float | None = None
    energy: EnergyOfOne = field(default_factory=PublicEnergy)

    def __post_init__(self) -> None:
        validate.positive(initial_inverse_temperature=self.initial_inverse_temperature)
        validate.count(rejection_threshold=self.rejection_threshold)
        validate.one_of(_COOLINGS, cooling=self.cooling)
        an_energy(PublicEnergy, PrivateEnergy, energy=self.energy)
        if self.cooling == "classic":
            validate.delta(cooling_rate=self.cooling_rate)
        elif self.cooling_rate is not None:
            raise InvalidValue("cooling_rate", allowed="given with the cooling 'classic' only", given=self.cooling_rate)

    @property
    def most_rejections(self) -> int:
        return self.rejection_threshold

    def start(self) -> SlotState:
        return _state(0, 0, float(self.initial_inverse_temperature))

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        return released

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        inverse_temperature = float(state["inverse_temperature"])
        is_forced = int(state["rejected_in_a_row"]) >= self.rejection_threshold
        is_accepted = _is_likely_enough(proposal, inverse_temperature, is_forced=is_forced)
        accepted = int(state["accepted"]) + is_accepted
        rejected_in_a_row = 0 if is_accepted else int(state["rejected_in_a_row"]) + 1
        after = _state(accepted, rejected_in_a_row, self._cooled(inverse_temperature, accepted))
        return Decision(float(is_accepted), after)

    def to_json(self) -> dict[str, object]:
        return {
            "kind": "annealed",
            "initial_inverse_temperature": self.initial_inverse_temperature,
            "rejection_threshold": self.rejection_threshold,
            "cooling": self.cooling,
            "cooling_rate": self.cooling_rate,
            "energy": self.energy.to_json(),
        }

    def _cooled(self, inverse_temperature: float, accepted: int) -> float:
        if self.cooling_rate is not None:
            return min(inverse_temperature / self.cooling_rate, _COLDEST)
        return self.initial_inverse_temperature * (max(accepted, 1) if self.cooling == "floored" else accepted)


def _is_likely_enough(proposal: Proposal, inverse_temperature: float, *, is_forced: bool) -> bool:
    change = proposal.change()
    if not change < math.inf:  # the candidate has no energy
        return False
    if is_forced or inverse_temperature == 0 or change <= 0:
        return True
    # The exponent is at most zero here, so that its exponential can be zero and never too large.
    return proposal.uniform() <= math.exp(-change * inverse_temperature)


def _state(accepted: int, rejected_in_a_row: int, inverse_temperature: float) -> dict[str, float]:
    return {
        "accepted": accepted,
        "rejected_in_a_row": rejected_in_a_row,
        "inverse_temperature": inverse_temperature,
    }
