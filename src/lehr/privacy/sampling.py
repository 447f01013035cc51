"""Sampling: which records enter a step. The sampler that draws also states its event, so the two agree.

``PoissonSampling`` draws every record independently; it is counted under add-or-remove-one.
``TruncatedPoissonSampling`` does the same and cuts a draw that is too large, at random. ``BallsInBinsSampling`` puts
every record into one step of each epoch. ``WithoutReplacement`` draws a fixed number of distinct records; the number of
records is then public, so it is counted under replace-one, where a sum can move by twice what one record adds, or under
zero-out, where a record keeps its place and adds nothing.
``physical`` cuts a draw into batches of one size (axis: P records).

>>> sampling = PoissonSampling(expected_batch_size=512, records=60_000)
>>> str(sampling.event(Gaussian(1.23)))
'PoissonSampled(sampling_probability=0.00853333, Gaussian(noise_multiplier=1.23))'
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from lehr import validate
from lehr.accounting.events import (
    Adjacency,
    BallsInBins,
    Gaussian,
    GroupPoissonSampled,
    PoissonSampled,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
)
from lehr.errors import InvalidValue
from lehr.privacy.rng import StepRandomness

# A jump is at most so long that a record at its end is reached with probability 1/16. A longer one would depend on the
# few smallest uniform numbers, whose logarithms are too far apart to distinguish neighbouring records.
_LONGEST_JUMP = math.log(16)


@dataclass(frozen=True)
class PoissonSampling:
    """Each record enters with probability ``expected_batch_size / records``.

    ``records`` is the number of records that the user states, a public constant: the probability is the same for
    neighbouring data sets, whatever the true number of records.
    """

    expected_batch_size: float
    records: int

    adjacency: ClassVar[Adjacency] = Adjacency.ADD_OR_REMOVE_ONE
    sensitivity_factor: ClassVar[float] = 1.0  # of a neighbour, relative to one record added or removed

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
        """Return the event of a step: this sampling, then the release of the sum."""
        return PoissonSampled(sampling_probability=self.sampling_probability, event=released)

    def draw(self, num_records: int, randomness: StepRandomness, *, purpose: str = "sampling") -> Tensor:
        """Return the indices of the records of one step, in order. A draw is never cut or filled up."""
        validate.count(minimum=0, num_records=num_records)
        if not num_records or self.sampling_probability == 1:
            return torch.arange(num_records)
        rate = -math.log1p(-self.sampling_probability)
        longest = max(1, int(min(num_records, _LONGEST_JUMP / rate)))
        mean_jump = -math.expm1(-rate * longest) / self.sampling_probability
        expected = num_records / mean_jump
        count = int(expected + 6 * math.sqrt(expected)) + 16
        while True:
            uniforms = randomness.uniforms(purpose, count)
            indices, end = _indices(uniforms, rate=rate, longest=longest)
            if end >= num_records:
                return indices[: int(torch.searchsorted(indices, num_records))]
            count *= 2  # the same numbers, and more of them after their end


@dataclass(frozen=True)
class GroupPoissonSampling(PoissonSampling):
    """The same draws, counted for a user with at most ``max_records_per_user`` records in the whole run."""

    max_records_per_user: int

    def __post_init__(self) -> None:
        PoissonSampling.__post_init__(self)
        validate.count(max_records_per_user=self.max_records_per_user)

    def event(self, released: Gaussian) -> GroupPoissonSampled:  # type: ignore[override]
        """Return the event of a step."""
        return GroupPoissonSampled(self.sampling_probability, self.max_records_per_user, released)


CUT = "cut"  # the purpose, after that of the draw, of the numbers that cut a batch


@dataclass(frozen=True)
class TruncatedPoissonSampling(PoissonSampling):
    """Poisson sampling of at most ``records`` records, cut at random to ``largest_batch`` where a draw is larger.

    No batch is larger, so that one physical batch of that size holds every draw.
    """

    largest_batch: int

    def __post_init__(self) -> None:
        PoissonSampling.__post_init__(self)
        if not self.expected_batch_size <= validate.count(largest_batch=self.largest_batch) <= self.records:
            allowed = f"from the expected {self.expected_batch_size:g} to the {self.records} records"
            raise InvalidValue("largest_batch", allowed=allowed, given=self.largest_batch)

    def event(self, released: Gaussian) -> TruncatedPoissonSampled:  # type: ignore[override]
        """Return the event of a step."""
        return TruncatedPoissonSampled(
            sampling_probability=self.sampling_probability,
            records=self.records,
            largest_batch=self.largest_batch,
            event=released,
        )

    def draw(self, num_records: int, randomness: StepRandomness, *, purpose: str = "sampling") -> Tensor:
        """Return the indices of the records of one step, in order. More records than stated are refused."""
        if num_records > self.records:
            raise InvalidValue("records", allowed="at least the number of records held", given=self.records)
        indices = PoissonSampling.draw(self, num_records, randomness, purpose=purpose)
        if len(indices) <= self.largest_batch:
            return indices
        mixed = randomness.uniforms(f"{purpose}, {CUT}", len(indices)).argsort()
        return indices[mixed[: self.largest_batch].sort().values]


def _indices(uniforms: Tensor, *, rate: float, longest: int) -> tuple[Tensor, int]:
    """Return the records that are hit when jumping from gap to gap, and the number of records passed."""
    # Cut before it becomes an integer: the quotient may be infinite.
    gaps = uniforms.log_().div_(-rate).clamp_max_(longest).long()
    hit = gaps < longest  # a longer jump ends before a record that has not had its coin yet
    ends = torch.cumsum(gaps + hit, dim=0)
    return ends[hit] - 1, int(ends[-1])


EPOCH = "epoch"  # the purpose, after that of the draw, of the numbers that choose a record's step


@dataclass(frozen=True)
class BallsInBinsSampling:
    """Every record enters exactly one of the ``bins`` steps of an epoch, chosen uniformly and independently.

    ``records`` is the number of records that the user states; it only decides the expected batch size.
    """

    bins: int
    records: int

    adjacency: ClassVar[Adjacency] = Adjacency.ADD_OR_REMOVE_ONE
    sensitivity_factor: ClassVar[float] = 1.0  # of a neighbour, relative to one record added or removed

    def __post_init__(self) -> None:
        validate.count(records=self.records)
        if not validate.count(bins=self.bins) <= self.records:
            raise InvalidValue("bins", allowed=f"at most the {self.records} records", given=self.bins)

    @property
    def expected_batch_size(self) -> float:
        return self.records / self.bins

    @property
    def sampling_probability(self) -> float:
        return self.expected_batch_size / self.records

    def event(self, released: Gaussian) -> BallsInBins:
        """Return the event of a whole epoch: a step has no event of its own."""
        return BallsInBins(bins=self.bins, event=released)

    def draw(
        self, num_records: int, randomness: StepRandomness, *, purpose: str = "sampling", position: int | None = None
    ) -> Tensor:
        """Return the indices of the records of one step, in order.

        ``position`` is the step's place in its epoch, from 0 to ``bins`` − 1. By default epochs begin at the multiples
        of ``bins``. The numbers are those of the epoch's first step, the same for all its steps.
        """
        validate.count(minimum=0, num_records=num_records)
        position = randomness.step % self.bins if position is None else validate.count(minimum=0, position=position)
        if not position < self.bins:
            raise InvalidValue("position", allowed=f"below {self.bins}, the steps of an epoch", given=position)
        epoch = replace(randomness, step=randomness.step - position)
        chosen = (epoch.uniforms(f"{purpose}, {EPOCH}", num_records) * self.bins).long()
        return (chosen == position).nonzero().squeeze(1)


@dataclass(frozen=True)
class WithoutReplacement:
    """``sample_size`` of exactly ``records`` records; neighbours have one of them replaced, or zeroed out."""

    sample_size: int
    records: int
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        validate.count(records=self.records)
        if not validate.count(sample_size=self.sample_size) <= self.records:
            raise InvalidValue("sample_size", allowed=f"at most the {self.records} records", given=self.sample_size)
        if self.adjacency not in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
            raise InvalidValue("adjacency", allowed="replace-one or zero-out", given=self.adjacency)

    @property
    def sensitivity_factor(self) -> float:
        """Of a neighbour, relative to one record's contribution."""
        return 2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0

    @property
    def expected_batch_size(self) -> float:
        return float(self.sample_size)

    @property
    def sampling_probability(self) -> float:
        return self.sample_size / self.records

    def event(self, released: Gaussian) -> SampledWithoutReplacement:
        """Return the event of a step.

        The noise multiplier of ``released`` is relative to one record's contribution. A record replaced by another
        moves the sum by twice as much, so the event then has half of that noise multiplier.
        """
        own = released
        if self.sensitivity_factor != 1:
            own = replace(released, noise_multiplier=released.noise_multiplier / self.sensitivity_factor)
        return SampledWithoutReplacement(records=self.records, sample_size=self.sample_size, event=own)

    def draw(self, num_records: int, randomness: StepRandomness, *, purpose: str = "sampling") -> Tensor:
        """Return the indices of the records of one step, in order."""
        if validate.count(minimum=0, num_records=num_records) != self.records:
            raise InvalidValue("num_records", allowed=f"exactly the {self.records} records stated", given=num_records)
        # For a large sample it is cheaper to draw the records that are left out.
        left_out = self.records - self.sample_size
        if left_out < self.sample_size:
            kept = torch.ones(self.records, dtype=torch.bool)
            kept[_distinct(left_out, self.records, randomness, purpose)] = False
            return kept.nonzero().squeeze(1)
        return _distinct(self.sample_size, self.records, randomness, purpose).sort().values


def _distinct(size: int, records: int, randomness: StepRandomness, purpose: str) -> Tensor:
    """Return the first ``size`` different indices of an endless sequence of independent ones."""
    count = size + size // 2 + 16
    while True:
        indices = (randomness.uniforms(purpose, count) * records).long().clamp_max_(records - 1)
        found, which = torch.unique(indices, return_inverse=True)
        never = torch.full_like(found, len(indices))
        first_at = never.scatter_reduce(0, which, torch.arange(len(indices)), reduce="amin")
        if len(found) >= size:
            chosen: Tensor = found[first_at.argsort()[:size]]
            return chosen
        count *= 2  # the same indices, and more of them after their end


ORDER = "order"  # the purpose of the numbers for ``shuffled``


@dataclass(frozen=True)
class PhysicalBatch:
    """Indices of records, and which of them were drawn; the others are padding and count for nothing."""

    indices_P: Tensor  # noqa: N815
    mask_P: Tensor  # noqa: N815


def shuffled(indices: Tensor, randomness: StepRandomness) -> Tensor:
    """Return the records in uniformly random order, so that physical batches do not depend on the other records.

    With a record less, all others but one keep their physical batches: ``lehr/run/mechanism.proof.md``.
    """
    return indices[randomness.uniforms(ORDER, len(indices)).argsort()]


def physical(indices: Tensor, size: int, *, is_padded: bool = True) -> list[PhysicalBatch]:
    """Return the records in batches of ``size``; the last is filled up with record 0, masked, unless it may be shorter.

    An empty draw is one batch of padding.

    >>> [batch.mask_P.tolist() for batch in physical(torch.tensor([3, 5, 8]), 2)]
    [[True, True], [True, False]]
    """
    validate.count(size=size)
    full = max(1, -(-len(indices) // size)) * size if is_padded else max(1, len(indices))
    padded = torch.cat([indices, indices.new_zeros(full - len(indices))])
    mask = torch.arange(len(padded)) < len(indices)
    rows = zip(torch.split(padded, size), torch.split(mask, size), strict=True)
    return [PhysicalBatch(indices_P=indices_P, mask_P=mask_P) for indices_P, mask_P in rows]


Sampling = PoissonSampling | BallsInBinsSampling | WithoutReplacement  # truncated Poisson sampling included
POISSON, TRUNCATED_POISSON, BALLS_IN_BINS = "poisson", "truncated-poisson", "balls-in-bins"

SAMPLERS: dict[str, type[Sampling]] = {
    POISSON: PoissonSampling,
    BALLS_IN_BINS: BallsInBinsSampling,
    TRUNCATED_POISSON: TruncatedPoissonSampling,
    "without-replacement": WithoutReplacement,
}
_COUNTED_UNDER_ZERO_OUT = (TRUNCATED_POISSON, "without-replacement")  # others cost as much as under add-or-remove-one
_SHUFFLED = dict.fromkeys(
    ("shuffled", "shuffle", "epochs", "shuffled-epochs"),
    ": shuffled epochs have no accountant here, and counting them as Poisson sampling understates ε,"
    " by up to four times in published runs; balls-in-bins has epochs that are counted",
)


def adjacency_of(sampling: str, adjacency: str | None = None) -> Adjacency:
    """Return the adjacency under which a sampling is counted, or the given one where it can be counted under that.

    >>> adjacency_of("without-replacement"), adjacency_of("without-replacement", "zero-out")
    (<Adjacency.REPLACE_ONE: 'replace-one'>, <Adjacency.ZERO_OUT: 'zero-out'>)
    >>> adjacency_of("shuffled")
    Traceback (most recent call last):
    ...
    lehr.errors.InvalidValue: sampling must be one of poisson, balls-in-bins, truncated-poisson, without-replacement: \
shuffled epochs have no accountant here, and counting them as Poisson sampling understates ε, by up to four times in \
published runs; balls-in-bins has epochs that are counted; given: 'shuffled'
    """
    if sampling not in tuple(SAMPLERS):  # a list in a file is not hashable
        reason = _SHUFFLED.get(str(sampling), "")
        raise InvalidValue("sampling", allowed=f"one of {', '.join(SAMPLERS)}{reason}", given=sampling)
    usual = SAMPLERS[sampling].adjacency
    others = (Adjacency.ZERO_OUT,) if sampling in _COUNTED_UNDER_ZERO_OUT else ()
    known = {each.value: each for each in (usual, *others)}
    if adjacency is None:
        return usual
    if adjacency not in tuple(known):  # a list in a file is not hashable
        raise InvalidValue("adjacency", allowed=f"{' or '.join(known)} with sampling {sampling}", given=adjacency)
    return Adjacency(adjacency)


def usual_largest_batch(expected_batch_size: float, records: int) -> int:
    """Return a size that draws hardly ever exceed: six standard deviations above the expected one, and a few more.

    >>> usual_largest_batch(512, 60_000)
    656
    """
    deviation = math.sqrt(expected_batch_size * (1 - expected_batch_size / records))
    return min(records, math.ceil(expected_batch_size + 6 * deviation + 8))


def counted_under(
    adjacency: Adjacency,
    *,
    expected_batch_size: float,
    records: int,
    largest_batch: int | None = None,
    bins: int | None = None,
    max_records_per_user: int | None = None,
) -> Sampling:
    """Return the sampler that is counted under an adjacency.

    With ``largest_batch``, it is that of truncated batches; with ``bins``, that of epochs of so many steps; with
    ``max_records_per_user``, that of users whose records are drawn one by one.
    """
    if max_records_per_user is not None:
        if adjacency is not Adjacency.ADD_OR_REMOVE_ONE or largest_batch is not None or bins is not None:
            allowed = "given under add-or-remove-one, without largest_batch and bins"
            raise InvalidValue("max_records_per_user", allowed=allowed, given=max_records_per_user)
        return GroupPoissonSampling(
            expected_batch_size=expected_batch_size, records=records, max_records_per_user=max_records_per_user
        )
    if bins is not None:
        if adjacency is not Adjacency.ADD_OR_REMOVE_ONE or largest_batch is not None:
            raise InvalidValue("bins", allowed="given under add-or-remove-one, without largest_batch", given=bins)
        return BallsInBinsSampling(bins=bins, records=records)
    if largest_batch is not None:
        if adjacency is Adjacency.REPLACE_ONE:
            raise InvalidValue("largest_batch", allowed=f"omitted under {adjacency.value}", given=largest_batch)
        return TruncatedPoissonSampling(
            expected_batch_size=expected_batch_size, records=records, largest_batch=largest_batch
        )
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        return PoissonSampling(expected_batch_size=expected_batch_size, records=records)
    if not float(expected_batch_size).is_integer():
        allowed = "a whole number where records are drawn without replacement"
        raise InvalidValue("expected_batch_size", allowed=allowed, given=expected_batch_size)
    return WithoutReplacement(sample_size=int(expected_batch_size), records=records, adjacency=adjacency)
