"""Sampling, clipping and noise as one object: what a step does to the records, and its event.

    records ─► sampling ─► gradients ─► clipping ─► PrivateSum ─► noise ─► ReleasedSum ─► update ─► acceptance

A ``Method`` is a choice of these components. A ``Mechanism`` is the private part of a method together with a plan: the
sampling probability, the noise and the divisor come from the same numbers as the charged event. The constructor checks
that this event is the plan's.
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
from lehr.config import BANDED_INVERSE
from lehr.errors import InvalidValue
from lehr.interfaces import Clipping, ComponentState, PrivateSum, ReleasedSum, StepOutcome, Tensors
from lehr.optim.optimizers import BuildsOptimizer, momentum_of
from lehr.planning.plan import Plan
from lehr.privacy.clipping import Unclipped
from lehr.privacy.correlated import CorrelatedNoise, CyclicPoissonSampling, InverseCorrelatedNoise
from lehr.privacy.noise import IsotropicNoise, NoNoise
from lehr.privacy.rng import StepRandomness
from lehr.privacy.sampling import BallsInBinsSampling, Sampling, counted_under, shuffled
from lehr.run.loss_oracle import event_of

LARGEST_BATCH = 2**20


class Noise(Protocol):
    """Turns a private sum into a released one, and states the event."""

    @property
    def kind(self) -> str:
        """How it is made, in the words of a plan: float or discrete."""

    @property
    def needs_bounds(self) -> bool:
        """Whether it needs a bound for each coordinate."""

    @property
    def needs_limit(self) -> bool:
        """Whether its multiplier depends on earlier releases, so that only a limit can be planned."""

    def event(self, noise_multiplier: float) -> Gaussian:
        """The event of one release."""

    def start(self, parameters: Tensors) -> ComponentState:
        """The state before the first step."""

    def factor(self, state: ComponentState) -> float:
        """The factor on the plan's noise multiplier at the next step."""

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, state: ComponentState
    ) -> ReleasedSum:
        """The sum with noise, which is scaled by the sum's own sensitivity."""

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        """The state after a step."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A training method: clipping, noise, acceptance and update.

    ``settings`` are the arguments it was built from. ``published`` is the accounting rule of the method's paper, if a
    run is to follow it; the proven ε is computed in any case.
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
            allowed = "one that bounds each record's gradient"
            raise InvalidValue("clipping", allowed=allowed, given="Unclipped")
        if self.noise.needs_limit and self.clipping.unproven is not None:
            allowed = "a proven one if costs depend on releases"
            raise InvalidValue("clipping", allowed=allowed, given=self.clipping.unproven)
        if self.noise.needs_bounds and not self.clipping.needs_coordinates:
            allowed = "one that bounds every coordinate, because the noise differs by coordinate"
            raise InvalidValue("clipping", allowed=allowed, given=type(self.clipping).__name__)

    @property
    def is_private(self) -> bool:
        """Whether it adds noise."""
        return not isinstance(self.noise, NoNoise)

    def asked(self, *, records: int, adjacency: Adjacency) -> Event:
        """The event of the method's queries at every step, besides the release of a sum."""
        asked = event_of(self.acceptance.energy, records=records, adjacency=adjacency)
        unproven = self.clipping.unproven
        return asked if unproven is None else together(asked, NonPrivate(unproven))


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What one step does to the private records. Noise multipliers are relative to one record's contribution."""

    sampling: Sampling
    clipping: Clipping
    noise: Noise
    plan: Plan

    @classmethod
    def of(cls, method: Method, plan: Plan) -> Mechanism:
        """The mechanism of a method under a plan."""
        if plan.expected_batch_size > LARGEST_BATCH:
            allowed = f"at most {LARGEST_BATCH}: rounding is bounded for no larger sums"
            raise InvalidValue("expected_batch_size", allowed=allowed, given=plan.expected_batch_size)
        if plan.bands > 1:
            mechanism = cls._correlated(method, plan)
        else:
            sampling = counted_under(
                plan.adjacency,
                expected_batch_size=plan.expected_batch_size,
                records=plan.records,
                largest_batch=plan.largest_batch,
                bins=plan.bins,
                max_records_per_user=plan.max_records_per_user,
            )
            mechanism = cls(sampling=sampling, clipping=method.clipping, noise=method.noise, plan=plan)
        if method.noise.needs_limit and plan.limit is None:
            allowed = "one with a limit, because the noise depends on releases"
            raise InvalidValue("plan", allowed=allowed, given=str(plan.event))
        asked = method.asked(records=plan.records, adjacency=plan.adjacency)
        if plan.asked != asked:
            raise InvalidValue("plan", allowed=f"one whose steps also have the event {asked}", given=str(plan.asked))
        for step in {0, plan.steps - 1}:
            planned, done = plan.gradient_event(step), mechanism.event(mechanism.noise_multiplier(step, 1.0))
            if done != planned:
                raise InvalidValue("plan", allowed=f"one whose steps have the event {done}", given=str(planned))
        return mechanism

    @classmethod
    def _correlated(cls, method: Method, plan: Plan) -> Mechanism:
        """The mechanism of a plan with bands: groups and bands are the plan's, and the momentum is the method's."""
        is_plain = type(method.noise) is IsotropicNoise and isinstance(method.acceptance, Always)
        if not is_plain or method.clipping.unproven is not None:
            allowed = "1 for a method with acceptance, with clipping without a proof or with other than isotropic noise"
            raise InvalidValue("bands", allowed=allowed, given=plan.bands)
        is_inverse = plan.correlation == BANDED_INVERSE
        sampling = CyclicPoissonSampling(
            expected_batch_size=plan.expected_batch_size,
            records=plan.records,
            num_groups=plan.num_groups,
            steps=plan.steps,
            inverse_bands=plan.bands if is_inverse else None,
        )
        noise = (InverseCorrelatedNoise if is_inverse else CorrelatedNoise).of(
            bands=plan.bands, steps=plan.steps, num_groups=plan.num_groups, momentum=momentum_of(method.update)
        )
        return cls(sampling=sampling, clipping=method.clipping, noise=noise, plan=plan)

    @property
    def divisor(self) -> float:
        """The divisor of released sums: a public constant, never the size of a draw."""
        return self.sampling.expected_batch_size

    def noise_multiplier(self, planned_step: int, factor: float) -> float:
        """The noise multiplier relative to one record's contribution: twice the plan's under replace-one."""
        return self.sampling.sensitivity_factor * self.plan.noise_multiplier_at(planned_step) * factor

    def event(self, noise_multiplier: float) -> Event:
        """The event of releasing a sum with this noise."""
        return self.sampling.event(self.noise.event(noise_multiplier))

    def next_event(self, state: ComponentState, *, planned_step: int) -> Event:
        """The event of the next step, including the method's queries."""
        released = self.event(self.noise_multiplier(planned_step, self.noise.factor(state)))
        return together(released, self.plan.asked)

    def draw(self, num_records: int, randomness: StepRandomness, *, planned_step: int | None = None) -> Tensor:
        """The indices of the records drawn for a step, in random order.

        With balls-in-bins sampling the planned step that pays for it decides its place in its epoch.
        """
        if isinstance(self.sampling, BallsInBinsSampling):
            position = None if planned_step is None else planned_step % self.sampling.bins
            return shuffled(self.sampling.draw(num_records, randomness, position=position), randomness)
        return shuffled(self.sampling.draw(num_records, randomness), randomness)

    def step_noise(self, state: ComponentState, *, planned_step: int) -> float:
        """The noise multiplier of a step: that of the planned step which pays for it, unless the plan has a limit."""
        factor = self.noise.factor(state)
        if factor != 1 and self.plan.limit is None:  # the plan's noise was charged
            raise InvalidValue("noise", allowed="the plan's, which has no limit", given=f"{factor} times that")
        return self.noise_multiplier(planned_step, factor)

    def release(
        self, private: PrivateSum, state: ComponentState, *, planned_step: int, randomness: StepRandomness
    ) -> ReleasedSum:
        """The sum over one draw with the noise of the planned step that pays for it."""
        noise_multiplier = self.step_noise(state, planned_step=planned_step)
        return self.noise.release(private, noise_multiplier=noise_multiplier, randomness=randomness, state=state)


def sum_parts(parts: Iterable[PrivateSum]) -> PrivateSum:
    """The sum of the parts. Each record is in one part, so the sensitivity is that of a part."""
    total: PrivateSum | None = None
    for part in parts:  # one at a time: each is as large as the model
        total = add_part(total, part)
    assert total is not None  # an empty draw has one part, which is padding
    return total


def add_part(total: PrivateSum | None, part: PrivateSum) -> PrivateSum:
    """Add a part to the total in place. The first part becomes the total, in float64, and belongs to it from then on.

    In float32, one record could change the rounding of a running sum over many parts by more than its own value.
    """
    if total is None:
        return replace(part, values={name: value.double() for name, value in part.values.items()})
    torch._foreach_add_(list(total.values.values()), [part.values[name] for name in total.values])
    return total
