"""A computation with random numbers, such as dropout's, that can be asked for again and then draws the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch

_Result = TypeVar("_Result")


class SameDraws(Generic[_Result]):
    """The first run draws from torch's generators like any code; a later one repeats its draws and leaves no trace."""

    def __init__(self, compute: Callable[[slice], _Result], *, device: torch.device) -> None:
        self._compute = compute
        self._device = device
        self._states: dict[tuple[int, int], list[torch.Tensor]] = {}

    def __call__(self, chunks: Sequence[slice]) -> Iterator[_Result]:
        for chunk in chunks:
            yield self._of(chunk)

    def _of(self, chunk: slice) -> _Result:
        key = (chunk.start, chunk.stop)
        if key not in self._states:
            self._states[key] = self._state()
            return self._compute(chunk)
        with torch.random.fork_rng(self._devices()):
            self._restore(self._states[key])
            return self._compute(chunk)

    def _devices(self) -> list[torch.device]:
        return [self._device] if self._device.type == "cuda" else []

    def _state(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices())]

    def _restore(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self._devices(), states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)
