"""What an acceptance may know about a candidate: how an energy changes, and one uniform number.

An acceptance never sees a record or a sum without noise. What it asks of private records is answered with noise and
charged for every candidate, whether it asks or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lehr.acceptance.energy import Energy
from lehr.interfaces import ReleasedSum, SlotState


class Proposal(Protocol):
    """The candidates along one released sum: the weights after a step of any size."""

    def change(self, step_scale: float = 1.0) -> float:
        """The energy at the candidate less the energy now; infinite where the candidate has none.

        An energy from private records is told once for each released sum.
        """

    def best(self, step_scales: Sequence[float]) -> int:
        """The place of the step size with the least energy."""

    def uniform(self) -> float:
        """A number in (0, 1), drawn for this candidate alone."""


class Decision(NamedTuple):
    """How far to go along the released sum, in steps; zero is a rejection. And the state after it.

    A rejection takes the weights back, and the optimizer too, unless it ``keeps_momentum``.
    """

    step_scale: float
    state: SlotState
    keeps_momentum: bool = False

    @property
    def is_accepted(self) -> bool:
        return self.step_scale != 0


class Acceptance(Protocol):
    """Says whether a candidate becomes the next weights, from a state of numbers and released tensors."""

    @property
    def energy(self) -> Energy | None:
        """What it asks about every candidate."""

    @property
    def most_rejections(self) -> int | None:
        """How many candidates in a row can be rejected at most; none where there is no end to it."""

    def start(self) -> SlotState:
        """The state before the first candidate."""

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        """What the candidate is made from: the sum that was just released, and perhaps earlier ones."""

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        """Whether the candidate is accepted; ``released`` is what it was made from."""

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
