"""Weight averaging beside the optimizer: the model that is released may be a mean of those the steps went through.

The weights are released values, so that any mean of them is post-processing and costs nothing. Averages are kept in
float32 or better. Buffers are the model's own and are not averaged.

>>> from torch import nn
>>> model = nn.Linear(1, 1, bias=False)
>>> rule = ExponentialAverage(decay=0.999)
>>> state = rule.learn(rule.start(model), model)
>>> torch.equal(rule.weights(state, model)["weight"], model.weight)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.interfaces import at_least_float32


@dataclass(frozen=True)
class AverageState:
    """The averages by parameter name, and how many steps were learnt from."""

    averages: dict[str, Tensor]
    learnt: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint needs, not copies, under names such as ``average/layer.weight``."""
        count = torch.tensor(self.learnt, dtype=torch.int64)
        return {_COUNT: count} | {_PREFIX + name: value for name, value in self.averages.items()}

    def loaded(self, tensors: Mapping[str, Tensor]) -> AverageState:
        """The state of a checkpoint, of the same kind as this one. Tensors that are not of an average are left out."""
        found = {name.removeprefix(_PREFIX): value for name, value in tensors.items() if name.startswith(_PREFIX)}
        if _COUNT not in tensors or found.keys() != self.averages.keys():
            raise InvalidValue("average", allowed=f"tensors for {sorted(self.averages)}", given=sorted(tensors))
        placed = {name: found[name].to(value.device, copy=True) for name, value in self.averages.items()}
        return AverageState(placed, int(tensors[_COUNT]))


_PREFIX = "average/"
_COUNT = "average_count"


class Averaging(Protocol):
    """Which mean of the weights is kept."""

    def start(self, model: nn.Module) -> AverageState:
        """Before the first step."""

    def learn(self, state: AverageState, model: nn.Module) -> AverageState:
        """After a step. The tensors of the state are changed in place; go on with what is returned."""

    def weights(self, state: AverageState, model: nn.Module) -> dict[str, Tensor]:
        """The averaged weights in the model's types, with its buffers: for ``load_state_dict``. Not copies."""

    def to_json(self) -> dict[str, object]:
        """The JSON form."""


@dataclass(frozen=True)
class NoAverage:
    """The weights after the last step."""

    def start(self, model: nn.Module) -> AverageState:
        return AverageState({})

    def learn(self, state: AverageState, model: nn.Module) -> AverageState:
        return state

    def weights(self, state: AverageState, model: nn.Module) -> dict[str, Tensor]:
        return _with_averages(model, {})

    def to_json(self) -> dict[str, object]:
        return {"kind": "none"}


@dataclass(frozen=True, kw_only=True)
class ExponentialAverage:
    """An exponential moving average with a warm-up, as in TAN (Sander et al. 2023) and De et al. (2022).

    After step t, counted from zero, the average keeps min(decay, (1 + t) / (10 + t)) of itself and takes the rest from
    the weights, so that the first weights are soon forgotten. It starts at the weights before the first step.
    """

    decay: float

    def __post_init__(self) -> None:
        validate.delta(decay=self.decay)

    def kept(self, step: int) -> float:
        """How much of the average stays after this step, counted from zero."""
        return min(float(self.decay), (1 + step) / (10 + step))

    def start(self, model: nn.Module) -> AverageState:
        return AverageState(_copies(model))

    def learn(self, state: AverageState, model: nn.Module) -> AverageState:
        _move(state.averages, model, share=1 - self.kept(state.learnt))
        return replace(state, learnt=state.learnt + 1)

    def weights(self, state: AverageState, model: nn.Module) -> dict[str, Tensor]:
        return _with_averages(model, state.averages)

    def to_json(self) -> dict[str, object]:
        return {"kind": "exponential", "decay": self.decay}


@dataclass(frozen=True, kw_only=True)
class TailAverage:
    """The plain mean of the weights after ``first_step`` and every step from there on, counted from zero.

    Before that step it is the weights themselves.
    """

    first_step: int

    def __post_init__(self) -> None:
        validate.count(minimum=0, first_step=self.first_step)

    def start(self, model: nn.Module) -> AverageState:
        return AverageState(_copies(model))

    def learn(self, state: AverageState, model: nn.Module) -> AverageState:
        _move(state.averages, model, share=1 / max(1, state.learnt - self.first_step + 1))
        return replace(state, learnt=state.learnt + 1)

    def weights(self, state: AverageState, model: nn.Module) -> dict[str, Tensor]:
        return _with_averages(model, state.averages)

    def to_json(self) -> dict[str, object]:
        return {"kind": "tail", "first_step": self.first_step}


_TYPE_OF: Mapping[str, tuple[Any, frozenset[str]]] = {
    "none": (NoAverage, frozenset()),
    "exponential": (ExponentialAverage, frozenset({"decay"})),
    "tail": (TailAverage, frozenset({"first_step"})),
}
AnyAverage: TypeAlias = "NoAverage | ExponentialAverage | TailAverage"


def from_json(shape: object) -> AnyAverage:
    """The averaging of a JSON form. Unknown kinds, missing or surplus fields and bad values are refused."""
    fields = dict(shape) if isinstance(shape, dict) else {}
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _TYPE_OF or fields.keys() != _TYPE_OF[kind][1]:
        allowed = "an object of one of the forms " + ", ".join(f"{k} {sorted(v[1])}" for k, v in _TYPE_OF.items())
        raise InvalidValue("averaging", allowed=allowed, given=shape)
    rule: AnyAverage = _TYPE_OF[kind][0](**fields)
    return rule


def _copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().to(at_least_float32(p.dtype), copy=True) for name, p in model.named_parameters()}


def _move(averages: dict[str, Tensor], model: nn.Module, *, share: float) -> None:
    """Move every average towards the weights by this share of the way."""
    kept = list(averages.values())
    weights = [p.detach().to(average.dtype) for p, average in zip(model.parameters(), kept, strict=True)]
    torch._foreach_lerp_(kept, weights, share)


def _with_averages(model: nn.Module, averages: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model's state, tied parameters under all of their names, with averages in place of weights."""
    names = {id(p): name for name, p in model.named_parameters()}
    state = model.state_dict(keep_vars=True)
    found = {name: averages.get(names.get(id(value), ""), value.detach()) for name, value in state.items()}
    return {name: value.to(state[name].dtype) for name, value in found.items()}
