"""A candidate whose energies and uniform number are chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Proposed:
    """From one energy to another."""

    now: float
    proposed: float
    drawn: float = 0.5

    def energy_now(self) -> float:
        return self.now

    def energy_proposed(self) -> float:
        return self.proposed

    def uniform(self) -> float:
        return self.drawn


@dataclass(frozen=True)
class Unasked:
    """A candidate that fails the test when anything is asked about it."""

    def energy_now(self) -> float:
        raise AssertionError

    def energy_proposed(self) -> float:
        raise AssertionError

    def uniform(self) -> float:
        raise AssertionError
