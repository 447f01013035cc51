"""The key of a run with somebody who notes what is drawn from it: at which step, for what, of which kind, how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from lehr.rng import RunKey, StepRandomness
from lehr.sampling.physical import ORDER


class Draw(NamedTuple):
    """Random numbers that were asked for. Of a generator, and of a seed, it is not known how many it will give."""

    step: int
    attempt: int
    kind: str
    purpose: str
    how_many: int | None = None


Listener: TypeAlias = Callable[[Draw], None]


@dataclass(frozen=True, kw_only=True)
class RecordedKey(RunKey):
    """Gives the numbers that the key gives, and tells ``listener`` of each draw."""

    listener: Listener = field(repr=False)

    @classmethod
    def of(cls, key: RunKey, listener: Listener) -> RecordedKey:
        """The same key, listened to."""
        return cls(secret=key.secret, cryptographic_on_gpu=key.cryptographic_on_gpu, listener=listener)

    def at(self, step: int, attempt: int) -> RecordedRandomness:
        return RecordedRandomness(key=self, step=step, attempt=attempt, listener=self.listener)


@dataclass(frozen=True, kw_only=True)
class RecordedRandomness(StepRandomness):
    """The random numbers of a step, each draw told."""

    listener: Listener = field(repr=False)

    def uniforms(self, purpose: str, count: int) -> Tensor:
        self._tell("uniforms", purpose, count)
        if purpose == ORDER:  # of all orders the one in which the record in question, the last, moves nobody
            return (torch.arange(count, dtype=torch.float64) + 0.5) / max(1, count)
        return super().uniforms(purpose, count)

    def normals(self, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._tell("normals", purpose, sum(tensor.numel() for tensor in like.values()))
        return super().normals(purpose, like)

    def generator(self, purpose: str, device: torch.device | str) -> torch.Generator:
        self._tell("generator", purpose)
        return super().generator(purpose, device)

    def seed(self, purpose: str) -> int:
        self._tell("seed", purpose)
        return super().seed(purpose)

    def _tell(self, kind: str, purpose: str, count: int | None = None) -> None:
        self.listener(Draw(self.step, self.attempt, kind, purpose, count))
