"""Sampling without replacement: a fixed number of distinct records, every set of that size equally likely.

It has its own event and its own accountant. The number of records is public here, so neighbours differ by one record
replaced by another, and a sum can move by twice what one record adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue
from lehr.events import Adjacency, Gaussian, SampledWithoutReplacement
from lehr.rng import StepRandomness


@dataclass(frozen=True)
class WithoutReplacement:
    """``sample_size`` of exactly ``records`` records."""

    sample_size: int
    records: int

    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    # How far a sum can move between neighbours, in units of what one record added or removed can do.
    sensitivity_factor: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        validate.count(records=self.records)
        if not validate.count(sample_size=self.sample_size) <= self.records:
            raise InvalidValue("sample_size", allowed=f"at most the {self.records} records", given=self.sample_size)

    @property
    def expected_batch_size(self) -> float:
        return float(self.sample_size)

    @property
    def sampling_probability(self) -> float:
        return self.sample_size / self.records

    def event(self, released: Gaussian) -> SampledWithoutReplacement:
        """What a step did to the records.

        ``released`` measures its noise by what one record added or removed can do to the sum. A record replaced by
        another can do twice as much, so that the event has half of that noise multiplier.
        """
        halved = Gaussian(noise_multiplier=released.noise_multiplier / self.sensitivity_factor)
        return SampledWithoutReplacement(records=self.records, sample_size=self.sample_size, event=halved)

    def draw(self, num_held: int, randomness: StepRandomness, *, purpose: str = "sampling") -> Tensor:
        """The places of the records of one step, in order."""
        if validate.count(minimum=0, num_held=num_held) != self.records:
            raise InvalidValue("num_held", allowed=f"exactly the {self.records} records stated", given=num_held)
        # Of a large sample it is cheaper to draw what is left out, and as random.
        left_out = self.records - self.sample_size
        if left_out < self.sample_size:
            kept = torch.ones(self.records, dtype=torch.bool)
            kept[_distinct(left_out, self.records, randomness, purpose)] = False
            return kept.nonzero().squeeze(1)
        return _distinct(self.sample_size, self.records, randomness, purpose).sort().values


def _distinct(size: int, records: int, randomness: StepRandomness, purpose: str) -> Tensor:
    """The first ``size`` different places of an endless row of independent ones."""
    count = size + size // 2 + 16
    while True:
        places = (randomness.uniforms(purpose, count) * records).long().clamp_max_(records - 1)
        found, first_at = _first_appearances(places)
        if len(found) >= size:
            return found[first_at.argsort()[:size]]
        count *= 2  # the same places, and more of them after their end


def _first_appearances(places: Tensor) -> tuple[Tensor, Tensor]:
    found, which = torch.unique(places, return_inverse=True)
    never = torch.full_like(found, len(places))
    return found, never.scatter_reduce(0, which, torch.arange(len(places)), reduce="amin")
