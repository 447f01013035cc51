"""A rejected gradient is paid for, so it is not thrown away: it is averaged with the next one at the same weights.

Sums that were released at the same weights measure the same thing with independent noise. Weighted by the precision
of their noise, their mean is a better measurement than any of them, and all of it is post-processing: every candidate
is charged, and only released values go in. Once a candidate is accepted the weights are others, and it starts anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from lehr.acceptance.energy import Energy
from lehr.acceptance.proposal import Acceptance, Decision, Proposal
from lehr.interfaces import ReleasedSum, SlotState

_INNER, _SUM, _STD, _PRECISION = "inner/", "carried/", "carried_std", "carried_precision"

Std: TypeAlias = "float | dict[str, Tensor]"


@dataclass(frozen=True)
class Salvage:
    """Another acceptance over the mean of all sums that were released since the weights last moved."""

    inner: Acceptance

    @property
    def energy(self) -> Energy | None:
        return self.inner.energy

    @property
    def most_rejections(self) -> int | None:
        return self.inner.most_rejections

    def start(self) -> SlotState:
        return {**_prefixed(_INNER, self.inner.start()), _PRECISION: 0.0}

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        carried, before = _part(state, _SUM), float(state[_PRECISION])
        if not before:
            return released
        share = before / (before + _precision(released))
        values = {name: value + share * (_tensor(carried[name]) - value) for name, value in released.values.items()}
        noise_std = _mixed(_std_of(state), released.noise_std, share)
        noise_multiplier = (before + _precision(released)) ** -0.5
        return ReleasedSum(values=values, noise_std=noise_std, noise_multiplier=noise_multiplier)

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        decision = self.inner.decide(_part(state, _INNER), proposal, released)
        inner = _prefixed(_INNER, decision.state)
        if decision.is_accepted:
            return decision._replace(state={**inner, _PRECISION: 0.0})
        kept = {**_prefixed(_SUM, released.values), **_kept_std(released.noise_std), _PRECISION: _precision(released)}
        return decision._replace(state={**inner, **kept})

    def to_json(self) -> dict[str, object]:
        return {"kind": "salvage", "of": self.inner.to_json()}


def _precision(released: ReleasedSum) -> float:
    return released.noise_multiplier**-2 if released.noise_multiplier else 1.0


def _mixed(carried: Std, just: Std, share: float) -> Std:
    """The standard deviation of a weighted mean of two independent noises."""
    if not isinstance(carried, dict) and not isinstance(just, dict):
        return math.hypot(share * carried, (1 - share) * just)
    names = carried if isinstance(carried, dict) else just
    assert isinstance(names, dict)  # an adaptive clip goes from one bound for all to one for each coordinate, and back
    return {name: torch.hypot(share * _at(carried, name), (1 - share) * _at(just, name)) for name in names}


def _at(std: Std, name: str) -> Tensor:
    return std[name].double() if isinstance(std, dict) else torch.tensor(std, dtype=torch.float64)


def _kept_std(std: Std) -> dict[str, float | Tensor]:
    return _prefixed(f"{_STD}/", std) if isinstance(std, dict) else {_STD: std}


def _std_of(state: SlotState) -> Std:
    if _STD in state:
        return float(state[_STD])
    return {name: _tensor(value) for name, value in _part(state, f"{_STD}/").items()}


def _prefixed(prefix: str, state: SlotState | dict[str, Tensor]) -> dict[str, float | Tensor]:
    return {prefix + name: value for name, value in state.items()}


def _part(state: SlotState, prefix: str) -> dict[str, float | Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _tensor(value: float | Tensor) -> Tensor:
    assert isinstance(value, Tensor)
    return value
