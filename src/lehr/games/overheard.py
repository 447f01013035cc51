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


class OverheardNoise:
    """Does what the noise does, and then tells ``hear`` what it was given and what it released."""

    def __init__(self, noise: Noise, hear: Hear) -> None:
        self._noise, self._hear = noise, hear

    @property
    def needs_bounds(self) -> bool:
        return self._noise.needs_bounds

    @property
    def needs_limit(self) -> bool:
        return self._noise.needs_limit

    def event(self, noise_multiplier: float) -> Gaussian:
        return self._noise.event(noise_multiplier)

    def start(self, parameters: Tensors) -> SlotState:
        return self._noise.start(parameters)

    def factor(self, state: SlotState) -> float:
        return self._noise.factor(state)

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, state: SlotState
    ) -> ReleasedSum:
        released = self._noise.release(private, noise_multiplier=noise_multiplier, randomness=randomness, state=state)
        self._hear(private, released)
        return released

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        return self._noise.learn(state, taken)


def overheard(method: Method, hear: Hear) -> Method:
    """The method, unchanged but for somebody who listens."""
    return replace(method, noise=OverheardNoise(method.noise, hear))
