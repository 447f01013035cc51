"""What ADADP knows about the size of gradients, coordinate by coordinate: a running mean E′ of squared mean gradients.

Xu et al. (2020). The paper feeds it with gradients as they are (``RawPrior``), from which no ε follows. What holds is a
prior from released sums (``ReleasedPrior``): the square of a released mean, less the variance of its own noise, which
is known. Both: ``adaptive.proof.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from lehr import validate
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, Tensors

RAW = "the bounds, and so the noise, follow sums of gradients that have no noise"


class Prior(Protocol):
    """What is known about the squares of mean gradients, coordinate by coordinate."""

    @property
    def unproven(self) -> str | None:
        """Why nothing holds for it, if so."""

    def start(self, parameters: Tensors) -> SlotState:
        """Before the first step."""

    def learn(self, state: SlotState, released: ReleasedSum, *, divisor: float) -> SlotState:
        """After a sum was released."""

    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:
        """After a sum was computed, and before it has noise."""

    def squares(self, state: SlotState) -> dict[str, Tensor] | None:
        """The expected squares, all above zero; nothing while they say nothing."""


@dataclass(frozen=True, kw_only=True)
class RawPrior:
    """The paper's: a running mean of squared mean gradients, without noise. Used once √E′ varies over coordinates."""

    memory: float = 0.9
    least_variance: float = 1e-6

    unproven: ClassVar[str | None] = RAW

    def __post_init__(self) -> None:
        validate.delta(memory=self.memory)
        validate.non_negative(least_variance=self.least_variance)

    def start(self, parameters: Tensors) -> SlotState:
        return _zeros(_SQUARE, parameters)

    def learn(self, state: SlotState, released: ReleasedSum, *, divisor: float) -> SlotState:
        return state

    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:
        squares = {name: (value.double() / divisor).square() for name, value in private.values.items()}
        return _moved(state, _SQUARE, squares, memory=self.memory)

    def squares(self, state: SlotState) -> dict[str, Tensor] | None:
        squares = _of(state, _SQUARE)
        roots = torch.cat([square.sqrt().flatten() for square in squares.values()])
        if not float(roots.var(correction=0)) > self.least_variance:
            return None
        return {name: square.clamp_min(_TINY) for name, square in squares.items()}


@dataclass(frozen=True, kw_only=True)
class ReleasedPrior:
    """A running mean of squared released means, less the variance of their noise; shrunk to the mean of its tensor.

    Increments are not cut off at zero: that would let the noise feed itself. How uncertain a coordinate's mean is, is
    known as well, since the noise is; where all its spread within a tensor is explained by that, the coordinates share
    the mean of their tensor. A coordinate counts as at least ``least_share`` of that mean.

    It says nothing while the mean over all coordinates is within ``significance`` standard errors of zero. Bounds that
    follow nothing but noise are worse than a flat clip.
    """

    memory: float = 0.99
    least_share: float = 0.1
    significance: float = 3.0

    unproven: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        validate.delta(memory=self.memory)
        validate.delta(least_share=self.least_share)
        validate.non_negative(significance=self.significance)

    def start(self, parameters: Tensors) -> SlotState:
        return {**_zeros(_SQUARE, parameters), **_zeros(_VARIANCE, parameters), _LEARNT: 0.0}

    def learn(self, state: SlotState, released: ReleasedSum, *, divisor: float) -> SlotState:
        noise = _variances(released, divisor=divisor)
        known = _of(state, _SQUARE)
        squares, variances = {}, {}
        for name, value in released.values.items():
            squares[name] = (value.double() / divisor).square() - noise[name]
            signal = (known[name] / self._warmth(state)).clamp_min(0)
            variances[name] = 2 * noise[name].square() + 4 * noise[name] * signal
        state = _moved(state, _SQUARE, squares, memory=self.memory)
        state = _moved(state, _VARIANCE, variances, memory=self.memory**2, share=(1 - self.memory) ** 2)
        return {**state, _LEARNT: float(state[_LEARNT]) + 1}

    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:
        return state

    def squares(self, state: SlotState) -> dict[str, Tensor] | None:
        if not state[_LEARNT]:
            return None
        warmth = self._warmth(state)
        squares = {name: square / warmth for name, square in _of(state, _SQUARE).items()}
        variances = {name: variance / warmth**2 for name, variance in _of(state, _VARIANCE).items()}
        whole = float(torch.cat([square.flatten() for square in squares.values()]).mean())
        if not whole > self.significance * _error_of_mean(variances):
            return None
        return {name: self._shrunk(square, variances[name], floor=whole) for name, square in squares.items()}

    def _shrunk(self, square: Tensor, variance: Tensor, *, floor: float) -> Tensor:
        """Towards the mean of the tensor, by as much of the spread as the known uncertainty explains."""
        mean = square.mean().clamp_min(self.least_share**2 * floor)
        spread = square.var(correction=0)
        kept = (1 - variance.mean() / spread.clamp_min(_TINY)).clamp(0, 1)
        return (mean + kept * (square - mean)).clamp_min(self.least_share * mean)

    def _warmth(self, state: SlotState) -> float:
        """What a running mean that began at zero has reached of the truth."""
        return 1.0 - float(self.memory ** max(1.0, float(state[_LEARNT])))


_SQUARE, _VARIANCE, _LEARNT = "square/", "variance/", "learnt"
_TINY = 1e-30


def _zeros(prefix: str, parameters: Tensors) -> dict[str, Tensor | float]:
    return {prefix + name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}


def _error_of_mean(variances: Mapping[str, Tensor]) -> float:
    """The standard error of the mean over all coordinates, which are independent."""
    whole = math.fsum(float(variance.sum()) for variance in variances.values())
    return math.sqrt(whole) / sum(variance.numel() for variance in variances.values())


def _of(state: SlotState, prefix: str) -> dict[str, Tensor]:
    found = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _moved(
    state: SlotState, prefix: str, seen: Mapping[str, Tensor], *, memory: float, share: float | None = None
) -> dict[str, Tensor | float]:
    """The state with these running means moved by what was seen."""
    share = 1 - memory if share is None else share
    moved = {prefix + name: memory * before + share * seen[name] for name, before in _of(state, prefix).items()}
    return {**state, **moved}


def _variances(released: ReleasedSum, *, divisor: float) -> dict[str, Tensor]:
    """Of the noise in a released mean, coordinate by coordinate."""
    return {
        name: torch.zeros_like(value, dtype=torch.float64) + (released.std_of(name) / divisor) ** 2
        for name, value in released.values.items()
    }
