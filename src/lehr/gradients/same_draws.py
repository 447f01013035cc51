"""A computation with random numbers, such as dropout's, that can be asked for again and then draws the same ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
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
            self._states[key] = states(self._device)
            return self._compute(chunk)
        with torch.random.fork_rng(_gpus(self._device)):
            restore(self._device, self._states[key])
            return self._compute(chunk)


def states_of_python() -> tuple[Any, ...]:
    """Where the generators of Python and NumPy stand."""
    state: Any = np.random.get_state(legacy=True)
    kind, keys, *rest = state
    return random.getstate(), (kind, keys.tobytes(), *rest)


def restore_python(kept: tuple[Any, ...]) -> None:
    """Put the generators of Python and NumPy back to where they stood."""
    random.setstate(kept[0])
    kind, keys, *rest = kept[1]
    np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *rest))


def states(device: torch.device) -> list[torch.Tensor]:
    """Where torch's generators stand, that of the CPU and that of a GPU."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in _gpus(device))]


def restore(device: torch.device, kept: list[torch.Tensor]) -> None:
    """Put torch's generators back to where they stood."""
    torch.set_rng_state(kept[0])
    for gpu, state in zip(_gpus(device), kept[1:], strict=True):
        torch.cuda.set_rng_state(state, gpu)


def _gpus(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
