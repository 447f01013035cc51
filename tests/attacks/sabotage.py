"""Faults put into the real parts, which attacks must find, and keys with which an attack can be repeated."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import pytest
from torch import Tensor

from lehr.attacks.harness import Wrapper
from lehr.interfaces import ClipRule, ComponentState, PrivateSum, RecordGradients
from lehr.privacy.clipping import FlatClip, PerCoordinateClip, Unclipped
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling
from lehr.run.mechanism import Method

Sabotage = Callable[[Method, pytest.MonkeyPatch], Method]


def keys_of(name: str) -> Iterator[RunKey]:
    """Keys that follow from a name: the same attack at every repetition of a test."""
    return (RunKey(hashlib.sha256(f"{name} {number}".encode()).digest()) for number in count())


def scale_noise(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Every noise from here on is so many times as large."""
    drawn, rounded = StepRandomness.normals, StepRandomness.rounded_normals

    def scaled(self: StepRandomness, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: factor * value for name, value in drawn(self, purpose, like).items()}

    def scaled_integers(self: StepRandomness, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: (factor * value.double()).long() for name, value in rounded(self, purpose, like).items()}

    monkeypatch.setattr(StepRandomness, "normals", scaled)
    monkeypatch.setattr(StepRandomness, "rounded_normals", scaled_integers)


def turn_clipping_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat clipping does not clip, and states its sensitivity as before."""

    def unclipped(self: FlatClip, gradients: RecordGradients) -> PrivateSum:
        return replace(Unclipped()(gradients), sensitivity=self.sensitivity)

    monkeypatch.setattr(FlatClip, "__call__", unclipped)


def noise_halved(method: Method, monkeypatch: pytest.MonkeyPatch) -> Method:
    scale_noise(monkeypatch, 0.5)
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


class ClipOff(Wrapper):
    """A way of clipping that does not clip."""

    def rule(self, state: ComponentState, step: int) -> ClipRule:
        return RuleOff(self.inner.rule(state, step))


SABOTAGES: Mapping[str, Sabotage] = {
    "noise halved": noise_halved,
    "clip off": clip_off,
    "sampling doubled": sampling_doubled,
}
