"""Weight averaging: the released model may be a mean of the weights that the steps went through.

The weights are released values, so any mean of them is post-processing and costs nothing. Averages are in float32 or
better. Buffers are the model's own and are not averaged.

>>> from torch import nn
>>> model = nn.Linear(1, 1, bias=False)
>>> rule = ExponentialAverage(decay=0.999)
>>> state = rule.learn(rule.start(model), model)
>>> torch.equal(rule.weights(state, model)["weight"], model.weight)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.interfaces import at_least_float32


@dataclass(frozen=True)
class AverageState:
    """The averages by parameter name, and the number of steps so far."""

    averages: dict[str, Tensor]
    learnt: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint needs, not copied, under names such as ``average/layer.weight``."""
        count = torch.tensor(self.learnt, dtype=torch.int64)
        return {_COUNT: count} | {_PREFIX + name: value for name, value in self.averages.items()}

    def loaded(self, tensors: Mapping[str, Tensor]) -> AverageState:
        """Return the state of a checkpoint, of the same kind as this one. Tensors of other names are ignored."""
        found = {name.removeprefix(_PREFIX): value for name, value in tensors.items() if name.startswith(_PREFIX)}
        if _COUNT not in tensors or found.keys() != self.averages.keys():
            raise InvalidValue("average", allowed=f"tensors for {sorted(self.averages)}", given=sorted(tensors))
        placed = {name: found[name].to(value.device, copy=True) for name, value in self.averages.items()}
        return AverageState(placed, int(tensors[_COUNT]))


_PREFIX = "average/"
_COUNT = "average_count"


class Averaging(Protocol):
    """A mean of the weights that the steps went through."""

    def start(self, model: nn.Module) -> AverageState:
        """Return the state before the first step."""

    def learn(self, state: AverageState, model: nn.Module) -> AverageState:
        """Return the state after a step. The tensors of ``state`` are changed in place."""

    def weights(self, state: AverageState, model: nn.Module) -> dict[str, Tensor]:
        """Return the averaged weights in the model's types, with its buffers, for ``load_state_dict``; not copied."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""


@dataclass(frozen=True)
class NoAverage:
    """The weights after the last step."""

    kind: ClassVar[str] = "none"

    def start(self, model: nn.Module) -> AverageState:
        return AverageState({})

    def learn(self, state: AverageState, model: nn.Module) -> AverageState:
        return state

    def weights(self, state: AverageState, model: nn.Module) -> dict[str, Tensor]:
        names = {id(p): name for name, p in model.named_parameters()}  # tied parameters have several
        found = model.state_dict(keep_vars=True)
        averaged = {name: state.averages.get(names.get(id(value), ""), value.detach()) for name, value in found.items()}
        return {name: value.to(found[name].dtype) for name, value in averaged.items()}

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, **asdict(self)}


class _MovingAverage(NoAverage):
    """Moves the average towards the weights after every step, counted from zero, by this share of the way."""

    def share(self, step: int) -> float:
        raise NotImplementedError

    def start(self, model: nn.Module) -> AverageState:
        parameters = model.named_parameters()
        return AverageState({name: p.detach().to(at_least_float32(p.dtype), copy=True) for name, p in parameters})

    def learn(self, state: AverageState, model: nn.Module) -> AverageState:
        averages = list(state.averages.values())
        weights = [p.detach().to(average.dtype) for p, average in zip(model.parameters(), averages, strict=True)]
        torch._foreach_lerp_(averages, weights, self.share(state.learnt))
        return replace(state, learnt=state.learnt + 1)


@dataclass(frozen=True, kw_only=True)
class ExponentialAverage(_MovingAverage):
    """An exponential moving average with a warm-up, as in TAN (Sander et al. 2023) and De et al. (2022).

    After step t, counted from zero, the average keeps min(decay, (1 + t) / (10 + t)) of itself and takes the rest from
    the weights, so that the first weights are soon forgotten. It starts at the weights before the first step.
    """

    decay: float
    kind: ClassVar[str] = "exponential"

    def __post_init__(self) -> None:
        validate.delta(decay=self.decay)

    def share(self, step: int) -> float:
        return 1 - min(float(self.decay), (1 + step) / (10 + step))


@dataclass(frozen=True, kw_only=True)
class TailAverage(_MovingAverage):
    """The plain mean of the weights after ``first_step`` and every step from there on, counted from zero.

    Before that step it is the weights themselves.
    """

    first_step: int
    kind: ClassVar[str] = "tail"

    def __post_init__(self) -> None:
        validate.count(minimum=0, first_step=self.first_step)

    def share(self, step: int) -> float:
        return 1 / max(1, step - self.first_step + 1)


_RULES: dict[str, Any] = {rule.kind: rule for rule in (NoAverage, ExponentialAverage, TailAverage)}


def from_json(shape: object) -> Averaging:
    """Return the averaging of a JSON form. Unknown kinds, missing or surplus fields and bad values are refused."""
    given = dict(strict_json.check_object("averaging", shape))
    kind = _RULES[validate.one_of(_RULES, averaging=given.pop("kind", None))]
    rule: Averaging = kind(**strict_json.fields("averaging", given, [field.name for field in fields(kind)]))
    return rule
