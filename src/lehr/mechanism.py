"""Sampler, clip and noise as one object: what a step does to the records, and what that is as an event.

    records ─► sampling ─► gradients ─► clipping ─► PrivateSum ─► noise ─► ReleasedSum ─► update ─► acceptance

A ``Method`` fills the slots; a ``Mechanism`` is a method's private half together with a plan. The probability that the
sampler uses, the noise that is added and the divisor are read from the same numbers as the event that is charged, and
that this is the plan's own event is checked where the mechanism is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from lehr.acceptance.always import Always
from lehr.acceptance.proposal import Acceptance
from lehr.errors import InvalidValue
from lehr.events import Event, Gaussian, NonPrivate
from lehr.interfaces import ClipRule, PrivateSum, ReleasedSum
from lehr.planning.plan import Plan
from lehr.rng import StepRandomness
from lehr.sampling import Sampling, counted_under
from lehr.update.torch_optim import BuildsOptimizer


class Noise(Protocol):
    """Turns a private sum into a released one, and says what that is."""

    def event(self, noise_multiplier: float) -> Gaussian | NonPrivate:
        """What releasing one sum is."""

    def release(self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness) -> ReleasedSum:
        """The sum with its noise, scaled from the sensitivity that the sum itself states."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A filling of the slots. ``settings`` are the arguments it was made from, for the record."""

    name: str
    clipping: ClipRule
    noise: Noise
    update: BuildsOptimizer
    acceptance: Acceptance = field(default_factory=Always)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What one step does to the private records. The noise multiplier is over what one record adds to the sum."""

    sampling: Sampling
    clipping: ClipRule
    noise: Noise
    noise_multiplier: float

    @classmethod
    def of(cls, method: Method, plan: Plan) -> Mechanism:
        """The mechanism of a method under a plan."""
        sampling = counted_under(plan.adjacency, expected_batch_size=plan.expected_batch_size, records=plan.records)
        mechanism = cls(
            sampling=sampling,
            clipping=method.clipping,
            noise=method.noise,
            noise_multiplier=sampling.sensitivity_factor * plan.noise_multiplier,
        )
        if mechanism.event != plan.step_event:
            raise InvalidValue("plan", allowed=f"one whose step is {mechanism.event}", given=str(plan.step_event))
        return mechanism

    @property
    def event(self) -> Event:
        """What a step is charged as."""
        return self.sampling.event(self.noise.event(self.noise_multiplier))

    @property
    def divisor(self) -> float:
        """What a released sum is divided by: a public constant, never the size of a draw."""
        return self.sampling.expected_batch_size

    def draw(self, num_held: int, randomness: StepRandomness) -> Tensor:
        """The places of the records that enter a step."""
        return self.sampling.draw(num_held, randomness)

    def release(self, parts: Sequence[PrivateSum], randomness: StepRandomness) -> ReleasedSum:
        """The noisy sum over one draw, given in parts that share no record. The noise is added once."""
        return self.noise.release(added(parts), noise_multiplier=self.noise_multiplier, randomness=randomness)


def added(parts: Sequence[PrivateSum]) -> PrivateSum:
    """The sum over all records of the parts. Each record is in one part, so the sensitivity is that of a part."""
    first, *others = parts
    values = dict(first.values)
    for part in others:
        values = {name: value + part.values[name] for name, value in values.items()}
    return replace(first, values=values)
