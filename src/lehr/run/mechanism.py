"""Sampler, clip and noise as one object: what a step does to the records, and what that is as an event.

    records ─► sampling ─► gradients ─► clipping ─► PrivateSum ─► noise ─► ReleasedSum ─► update ─► acceptance

A ``Method`` fills the slots; a ``Mechanism`` is a method's private half together with a plan. The probability that the
sampler uses, the noise that is added and the divisor are read from the same numbers as the event that is charged, and
that this is the plan's own event is checked where the mechanism is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from lehr.acceptance.proposal import Acceptance
from lehr.acceptance.rules import Always
from lehr.accounting.claims import PublishedRule
from lehr.accounting.events import Adjacency, Event, Gaussian, NonPrivate, together
from lehr.errors import InvalidValue
from lehr.interfaces import Clipping, PrivateSum, ReleasedSum, SlotState, StepOutcome, Tensors
from lehr.optim.optimizers import BuildsOptimizer
from lehr.planning.plan import Plan
from lehr.privacy.clipping import Unclipped
from lehr.privacy.noise import NoNoise
from lehr.privacy.rng import StepRandomness
from lehr.privacy.sampling import Sampling, counted_under, shuffled
from lehr.run.loss_oracle import event_of

LARGEST_BATCH = 2**20


class Noise(Protocol):
    """Turns a private sum into a released one, and says what that is."""

    @property
    def needs_bounds(self) -> bool:
        """Whether its shape follows the bounds of coordinates."""

    @property
    def needs_limit(self) -> bool:
        """Whether its multiplier follows what was released, so that only a limit can be planned."""

    def event(self, noise_multiplier: float) -> Gaussian:
        """What releasing one sum is."""

    def start(self, parameters: Tensors) -> SlotState:
        """The state before the first step."""

    def factor(self, state: SlotState) -> float:
        """What the plan's noise multiplier is multiplied by at the next step."""

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, state: SlotState
    ) -> ReleasedSum:
        """The sum with its noise, scaled from the sensitivity that the sum itself states."""

    def learn(self, state: SlotState, taken: StepOutcome) -> SlotState:
        """The state after a step."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A combination of components: clip, noise, acceptance, update.

    ``settings`` are the arguments it was made from, which are recorded. ``published`` is the rule by which the method's
    paper counts, if a run is to follow it; the proven ε is computed in any case.
    """

    name: str
    clipping: Clipping
    noise: Noise
    update: BuildsOptimizer
    acceptance: Acceptance = field(default_factory=Always)
    published: PublishedRule | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.is_private and isinstance(self.clipping, Unclipped):
            allowed = "one that bounds what a record can do: no noise covers what is not clipped"
            raise InvalidValue("clipping", allowed=allowed, given="Unclipped")
        if self.noise.needs_limit and self.clipping.unproven is not None:
            allowed = "one that is proven where costs follow what is released"
            raise InvalidValue("clipping", allowed=allowed, given=self.clipping.unproven)
        if self.noise.needs_bounds and not self.clipping.needs_coordinates:
            allowed = "one that bounds every coordinate: noise of another shape does not cover a bound on the norm"
            raise InvalidValue("clipping", allowed=allowed, given=type(self.clipping).__name__)

    @property
    def is_private(self) -> bool:
        """Whether there is noise at all."""
        return not isinstance(self.noise, NoNoise)

    def asked(self, *, records: int, adjacency: Adjacency) -> Event:
        """What is done to the records at every step beside the release of a sum."""
        asked = event_of(self.acceptance.energy, records=records, adjacency=adjacency)
        unproven = self.clipping.unproven
        return asked if unproven is None else together(asked, NonPrivate(unproven))


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What one step does to the private records. Noise multipliers are over what one record adds to the sum."""

    sampling: Sampling
    clipping: Clipping
    noise: Noise
    plan: Plan

    @classmethod
    def of(cls, method: Method, plan: Plan) -> Mechanism:
        """The mechanism of a method under a plan."""
        if plan.expected_batch_size > LARGEST_BATCH:
            allowed = f"at most {LARGEST_BATCH}: the rounding of a sum of more records is not charged"
            raise InvalidValue("expected_batch_size", allowed=allowed, given=plan.expected_batch_size)
        sampling = counted_under(plan.adjacency, expected_batch_size=plan.expected_batch_size, records=plan.records)
        mechanism = cls(sampling=sampling, clipping=method.clipping, noise=method.noise, plan=plan)
        if method.noise.needs_limit and plan.limit is None:
            allowed = "one with a limit, since the noise follows what is released"
            raise InvalidValue("plan", allowed=allowed, given=str(plan.event))
        asked = method.asked(records=plan.records, adjacency=plan.adjacency)
        if plan.asked != asked:
            raise InvalidValue("plan", allowed=f"one that asks for {asked} at every step", given=str(plan.asked))
        for step in {0, plan.steps - 1}:
            planned, done = plan.gradient_event(step), mechanism.event(mechanism.noise_multiplier(step, 1.0))
            if done != planned:
                raise InvalidValue("plan", allowed=f"one whose step is {done}", given=str(planned))
        return mechanism

    @property
    def divisor(self) -> float:
        """What a released sum is divided by: a public constant, never the size of a draw."""
        return self.sampling.expected_batch_size

    def noise_multiplier(self, planned_step: int, factor: float) -> float:
        """The noise of a step over what one record adds: twice the plan's where records are replaced."""
        return self.sampling.sensitivity_factor * self.plan.noise_multiplier_at(planned_step) * factor

    def event(self, noise_multiplier: float) -> Event:
        """What the release of a sum with this noise is charged as."""
        return self.sampling.event(self.noise.event(noise_multiplier))

    def next_event(self, state: SlotState, *, planned_step: int) -> Event:
        """What the next step does to the records, all that is asked included."""
        released = self.event(self.noise_multiplier(planned_step, self.noise.factor(state)))
        return together(released, self.plan.asked)

    def draw(self, num_records: int, randomness: StepRandomness) -> Tensor:
        """The indices of the records that enter a step, in random order."""
        return shuffled(self.sampling.draw(num_records, randomness), randomness)

    def step_noise(self, state: SlotState, *, planned_step: int) -> float:
        """The noise multiplier of a step: the plan's for the step that pays, unless the plan has a limit."""
        factor = self.noise.factor(state)
        if factor != 1 and self.plan.limit is None:  # it was charged as the plan has it
            raise InvalidValue("noise", allowed="that of the plan, which has no limit", given=f"{factor} times that")
        return self.noise_multiplier(planned_step, factor)

    def release(
        self, private: PrivateSum, state: SlotState, *, planned_step: int, randomness: StepRandomness
    ) -> ReleasedSum:
        """The noisy sum over one draw. The noise is added once, and is that of the step of the plan that pays."""
        noise_multiplier = self.step_noise(state, planned_step=planned_step)
        return self.noise.release(private, noise_multiplier=noise_multiplier, randomness=randomness, state=state)


def sum_parts(parts: Iterable[PrivateSum]) -> PrivateSum:
    """The sum over all records of the parts. Each record is in one part, so the sensitivity is that of a part."""
    total: PrivateSum | None = None
    for part in parts:  # one at a time: each is as large as the model
        total = add_part(total, part)
    assert total is not None  # a draw of nobody is one part, of padding
    return total


def add_part(total: PrivateSum | None, part: PrivateSum) -> PrivateSum:
    """The total, in place, with one part more; of no total yet, a copy of the part. In float64, whatever a part is in.

    In float32 the rounding of a running sum changes with every record, and over many parts by more than one record.
    """
    if total is None:
        return replace(part, values={name: value.to(torch.float64, copy=True) for name, value in part.values.items()})
    torch._foreach_add_(list(total.values.values()), [part.values[name] for name in total.values])
    return total
