"""Poisson sampling: every record enters a step by its own coin, independently of all others.

>>> sampling = PoissonSampling(expected_batch_size=512, records=60_000)
>>> str(sampling.event(Gaussian(1.23)))
'PoissonSampled(sampling_probability=0.00853333, Gaussian(noise_multiplier=1.23))'
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue
from lehr.events import Adjacency, Gaussian, PoissonSampled
from lehr.rng import StepRandomness

# A jump is at most so long that a record at its end is reached with probability 1/16. A longer one would rest on the
# few smallest of the uniform numbers, whose logarithms are too far apart for the records that they must tell apart.
_LONGEST_JUMP = math.log(16)


@dataclass(frozen=True)
class PoissonSampling:
    """Each record enters with probability ``expected_batch_size / records``.

    ``records`` is the number of records that the user states, a public constant: the probability is the same for
    neighbouring data sets, whatever number of records is really held.
    """

    expected_batch_size: float
    records: int

    adjacency: ClassVar[Adjacency] = Adjacency.ADD_OR_REMOVE_ONE
    # How far a sum can move between neighbours, in units of what one record added or removed can do.
    sensitivity_factor: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        validate.count(records=self.records)
        given = validate.positive(expected_batch_size=self.expected_batch_size)
        if not given <= self.records:
            raise InvalidValue("expected_batch_size", allowed=f"at most the {self.records} records", given=given)
        validate.probability(sampling_probability=self.sampling_probability)

    @property
    def sampling_probability(self) -> float:
        return self.expected_batch_size / self.records

    def event(self, released: Gaussian) -> PoissonSampled:
        """What a step did to the records: this sampling, and then what was released about the sum."""
        return PoissonSampled(sampling_probability=self.sampling_probability, event=released)

    def draw(self, num_held: int, randomness: StepRandomness, *, purpose: str = "sampling") -> Tensor:
        """The places of the records of one step, in order: as many as the coins say, never more or fewer."""
        validate.count(minimum=0, num_held=num_held)
        if not num_held or self.sampling_probability == 1:
            return torch.arange(num_held)
        rate = -math.log1p(-self.sampling_probability)
        longest = max(1, int(min(num_held, _LONGEST_JUMP / rate)))
        mean_jump = -math.expm1(-rate * longest) / self.sampling_probability
        expected = num_held / mean_jump
        count = int(expected + 6 * math.sqrt(expected)) + 16
        while True:
            uniforms = randomness.uniforms(purpose, count)
            places, end = _places(uniforms, rate=rate, longest=longest)
            if end >= num_held:
                return places[: int(torch.searchsorted(places, num_held))]
            count *= 2  # the same numbers, and more of them after their end


def _places(uniforms: Tensor, *, rate: float, longest: int) -> tuple[Tensor, int]:
    """The records that are hit when jumping on from gap to gap, and how many records were passed."""
    # Cut before it becomes an integer: the quotient may be infinite.
    gaps = uniforms.log_().div_(-rate).clamp_max_(longest).long()
    hit = gaps < longest  # a longer jump ends before a record that has not had its coin yet
    ends = torch.cumsum(gaps + hit, dim=0)
    return ends[hit] - 1, int(ends[-1])
