"""Faults put into the real parts, for games that must find them, and keys with which a game can be repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import pytest
from torch import Tensor

from lehr.interfaces import Clipping, ClipRule, PrivateSum, RecordGradients, SlotState, StepOutcome, Tensors
from lehr.privacy.clipping import PerCoordinateClip, Unclipped
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling
from lehr.run.mechanism import Method

Sabotage = Callable[[Method, pytest.MonkeyPatch], Method]


def keys_of(name: str) -> Iterator[RunKey]:
    """Keys that follow from a name: the same game at every repetition of a test."""
    return (RunKey(hashlib.sha256(f"{name} {number}".encode()).digest()) for number in count())


def noise_halved(method: Method, monkeypatch: pytest.MonkeyPatch) -> Method:
    drawn = StepRandomness.normals

    def half(self: StepRandomness, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value / 2 for name, value in drawn(self, purpose, like).items()}

    monkeypatch.setattr(StepRandomness, "normals", half)
    return method


def sampling_doubled(method: Method, monkeypatch: pytest.MonkeyPatch) -> Method:
    draw = PoissonSampling.draw

    def twice(
        self: PoissonSampling, num_records: int, randomness: StepRandomness, *, purpose: str = "sampling"
    ) -> Tensor:
        doubled = PoissonSampling(expected_batch_size=2 * self.expected_batch_size, records=self.records)
        return draw(doubled, num_records, randomness, purpose=purpose)

    monkeypatch.setattr(PoissonSampling, "draw", twice)
    return method


def clip_off(method: Method, monkeypatch: pytest.MonkeyPatch) -> Method:
    return replace(method, clipping=ClipOff(method.clipping))


@dataclass(frozen=True)
class RuleOff:
    """States the sensitivity, and the bounds, of a rule that it does not follow."""

    rule: ClipRule

    @property
    def sensitivity(self) -> float:
        return self.rule.sensitivity

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        bounds = self.rule.bounds if isinstance(self.rule, PerCoordinateClip) else None
        return replace(Unclipped()(gradients), sensitivity=self.sensitivity, bounds=bounds)


@dataclass(frozen=True)
class ClipOff:
    """A way of clipping that does not clip."""

    clipping: Clipping

    @property
    def needs_coordinates(self) -> bool:
        return self.clipping.needs_coordinates

    @property
    def unproven(self) -> str | None:
        return self.clipping.unproven

    def start(self, parameters: Tensors) -> SlotState:
        return self.clipping.start(parameters)

    def rule(self, state: SlotState, step: int) -> ClipRule:
        return RuleOff(self.clipping.rule(state, step))

    def learn(self, state: SlotState, taken: StepOutcome) -> SlotState:
        return self.clipping.learn(state, taken)

    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:
        return self.clipping.peek(state, private, divisor=divisor)


SABOTAGES: Mapping[str, Sabotage] = {
    "noise halved": noise_halved,
    "clip off": clip_off,
    "sampling doubled": sampling_doubled,
}
