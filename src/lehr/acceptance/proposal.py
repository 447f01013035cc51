"""What an acceptance may know about a candidate: two public energies and one uniform number.

An acceptance never sees a record or a sum. Energies are computed only when asked for, from records that are public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

State: TypeAlias = Mapping[str, float]


class Proposal(Protocol):
    """A candidate for the next weights."""

    def energy_now(self) -> float:
        """The public energy at the weights before."""

    def energy_proposed(self) -> float:
        """The public energy at the candidate."""

    def uniform(self) -> float:
        """A number in (0, 1), drawn for this candidate alone."""


class Acceptance(Protocol):
    """Says whether a candidate becomes the next weights, from a state that JSON can hold."""

    @property
    def needs_energy(self) -> bool:
        """Whether public records are needed."""

    def start(self) -> dict[str, float]:
        """The state before the first candidate."""

    def decide(self, state: State, proposal: Proposal) -> tuple[bool, dict[str, float]]:
        """Whether the candidate is accepted, and the state after it."""

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
