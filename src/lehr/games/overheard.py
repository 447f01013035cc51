"""The noise of a method with somebody who listens: an adversary who sees every released sum, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from lehr.events import Gaussian
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, Taken, Tensors
from lehr.mechanism import Method, Noise
from lehr.rng import StepRandomness

Hear: TypeAlias = Callable[[PrivateSum, ReleasedSum], None]


class NoisePassedOn:
    """Does what a noise does, for those who want to know of it."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise

    @property
    def needs_bounds(self) -> bool:
        return self.noise.needs_bounds

    @property
    def needs_limit(self) -> bool:
        return self.noise.needs_limit

    def event(self, noise_multiplier: float) -> Gaussian:
        return self.noise.event(noise_multiplier)

    def start(self, parameters: Tensors) -> SlotState:
        return self.noise.start(parameters)

    def factor(self, state: SlotState) -> float:
        return self.noise.factor(state)

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, state: SlotState
    ) -> ReleasedSum:
        return self.noise.release(private, noise_multiplier=noise_multiplier, randomness=randomness, state=state)

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        return self.noise.learn(state, taken)


class OverheardNoise(NoisePassedOn):
    """A noise that tells ``hear`` what it was given and what it released."""

    def __init__(self, noise: Noise, hear: Hear) -> None:
        super().__init__(noise)
        self._hear = hear

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, state: SlotState
    ) -> ReleasedSum:
        released = super().release(private, noise_multiplier=noise_multiplier, randomness=randomness, state=state)
        self._hear(private, released)
        return released


def overheard(method: Method, hear: Hear) -> Method:
    """The method, unchanged but for somebody who listens."""
    return replace(method, noise=OverheardNoise(method.noise, hear))
