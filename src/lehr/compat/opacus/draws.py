"""The draws of one training: which records enter a step, in which parts they are computed, and that each is used once.

>>> draws = Draws()
>>> randomness = draws.fresh()
>>> draws.begin(Part(randomness=randomness, num_records=3, is_last=True))
>>> draws.taken().num_records
3
>>> draws.taken()
Traceback (most recent call last):
...
lehr.errors.InvalidValue: loop must be one that takes every step on a batch of the private data loader, and one step \
on each; given: 'a step without a new batch'
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lehr.errors import InvalidValue
from lehr.rng import KEY_BYTES, RunKey, StepRandomness


@dataclass(frozen=True, kw_only=True)
class Part:
    """A physical batch of a draw: how many of its records it has, and whether it is the last.

    A draw of nobody may be shown as one record that is made up, so that a model need not run on nothing. It counts for
    nothing.
    """

    randomness: StepRandomness
    num_records: int
    is_last: bool
    is_made_up: bool = False


def run_key(generator: torch.Generator | None, *, secure: bool) -> RunKey:
    """A key of the system's entropy; or of a generator, which is for tests alone, since its seed may be known."""
    if generator is None:
        return RunKey.fresh(cryptographic_on_gpu=secure)
    drawn = torch.randint(0, 256, (KEY_BYTES,), generator=generator, device=generator.device)
    return RunKey(bytes(drawn.tolist()), cryptographic_on_gpu=secure)


class Draws:
    """Hands out the randomness of every draw, and knows which part of which draw the loop is working on."""

    def __init__(self, key: RunKey | None = None) -> None:
        self._key = RunKey.fresh() if key is None else key
        self._drawn = 0
        self._current: Part | None = None
        self._told: list[Callable[[], None]] = []

    def fresh(self) -> StepRandomness:
        """The randomness of the next draw: its coins and, when it is released, its noise."""
        self._drawn += 1
        return self._key.at(self._drawn, 0)

    def begin(self, part: Part) -> None:
        """The loop is given this part now. One that it was given before and did not use is gone."""
        self._current = part
        for told in self._told:
            told()

    def when_begun(self, told: Callable[[], None]) -> None:
        """Call this whenever the loop is given another part."""
        self._told.append(told)

    def taken(self) -> Part:
        """The part that a step is taken on, once: a second look at the same records would be another release."""
        part, self._current = self._current, None
        if part is None:
            allowed = "one that takes every step on a batch of the private data loader, and one step on each"
            raise InvalidValue("loop", allowed=allowed, given="a step without a new batch")
        return part
