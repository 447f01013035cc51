"""Acceptance by simulated annealing: a candidate with a higher energy is accepted only sometimes.

SA-DPSGD (Fu et al. 2022), Algorithm 2. A candidate that raises the energy by dE is accepted with probability
e^(-dE Q), and surely after ``rejection_threshold`` rejections in a row. The inverse temperature Q follows a cooling:

- ``accepted``: the paper's. Q0 for the first candidate, then Q0 times the number accepted so far, which is zero, and
  acceptance sure, until something has been accepted.
- ``floored``: Q0 times the number accepted, or Q0 where that is none.
- ``classic``: the paper's Algorithm 1. The temperature 1 / Q is multiplied by ``cooling_rate`` after every candidate.

A rejection restores the momentum with the weights. With ``keeps_momentum`` only the weights are restored, and the
rejected gradient stays in the steps that follow. The energy is the mean loss on public records, or one from private
records that is clipped, noised and charged. A candidate whose energy is not finite is never accepted, not even after
that many rejections: those weights would end the run. The next one whose energy is finite is then accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Literal

import torch
from torch import Tensor

from lehr import validate
from lehr.acceptance.proposal import Decision, EnergyOfOne, PrivateEnergy, Proposal, PublicEnergy, check_energy
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, ReleasedSum

_COOLINGS = ("accepted", "floored", "classic")
_COLDEST = 1e300
_STATE = ("accepted", "rejected_in_a_row", "inverse_temperature")


@dataclass(frozen=True, kw_only=True)
class Annealed:
    """Simulated annealing over an energy. ``cooling_rate`` is for the classic cooling only."""

    initial_inverse_temperature: float = 10.0
    rejection_threshold: int = 10
    cooling: Literal["accepted", "floored", "classic"] = "accepted"
    cooling_rate: float | None = None
    keeps_momentum: bool = False
    energy: EnergyOfOne = field(default_factory=PublicEnergy)

    def __post_init__(self) -> None:
        validate.positive(initial_inverse_temperature=self.initial_inverse_temperature)
        validate.count(rejection_threshold=self.rejection_threshold)
        validate.one_of(_COOLINGS, cooling=self.cooling)
        validate.true_or_false(keeps_momentum=self.keeps_momentum)
        check_energy(PublicEnergy, PrivateEnergy, energy=self.energy)
        if self.cooling == "classic":
            validate.delta(cooling_rate=self.cooling_rate)
        elif self.cooling_rate is not None:
            raise InvalidValue("cooling_rate", allowed="given with the cooling 'classic' only", given=self.cooling_rate)

    @property
    def most_rejections(self) -> int:
        return self.rejection_threshold

    def start(self) -> ComponentState:
        return dict(zip(_STATE, (0.0, 0.0, float(self.initial_inverse_temperature)), strict=True))

    def combined(self, state: ComponentState, released: ReleasedSum) -> ReleasedSum:
        return released

    def decide(self, state: ComponentState, proposal: Proposal, released: ReleasedSum) -> Decision:
        def uniform() -> Tensor:
            return torch.tensor(proposal.uniform(), dtype=torch.float64)

        change = torch.tensor(proposal.change(), dtype=torch.float64)
        is_accepted, after = self.decide_each(state, change, uniform)
        numbers = {name: value.item() for name, value in after.items()}
        return Decision(float(is_accepted), numbers, self.keeps_momentum)

    def decide_each(
        self, state: ComponentState, change: Tensor, uniform: Callable[[], Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the decisions of many runs at once, one run for each element of the tensors, and their states.

        ``uniform`` is called only where one of the runs leaves something to chance.
        """
        # float64 holds every count exactly.
        values = (torch.as_tensor(state[name], dtype=torch.float64) for name in _STATE)
        accepted, rejected_in_a_row, inverse_temperature = values
        chance = self._chance(change, rejected_in_a_row, inverse_temperature)
        is_open = (chance > 0) & (chance < 1)
        is_accepted = uniform() <= chance if bool(is_open.any()) else chance == 1
        accepted = accepted + is_accepted
        rejected_in_a_row = torch.where(is_accepted, 0.0, rejected_in_a_row + 1)
        after = accepted, rejected_in_a_row, self._cooled(inverse_temperature, accepted)
        return is_accepted, dict(zip(_STATE, after, strict=True))

    def to_json(self) -> dict[str, object]:
        return {"kind": "annealed", **asdict(self), "energy": self.energy.to_json()}

    def _chance(self, change: Tensor, rejected_in_a_row: Tensor, inverse_temperature: Tensor) -> Tensor:
        """Return the probability with which a candidate is accepted."""
        is_sure = (rejected_in_a_row >= self.rejection_threshold) | (inverse_temperature == 0) | (change <= 0)
        # Where it is not sure, the exponent is at most zero, so that its exponential can be zero and never too large.
        chance = torch.where(is_sure, 1.0, torch.exp(-change * inverse_temperature))
        return torch.where(change < math.inf, chance, 0.0)  # the others have no energy

    def _cooled(self, inverse_temperature: Tensor, accepted: Tensor) -> Tensor:
        if self.cooling_rate is not None:
            return (inverse_temperature / self.cooling_rate).clamp_max(_COLDEST)
        return self.initial_inverse_temperature * (accepted.clamp_min(1) if self.cooling == "floored" else accepted)
