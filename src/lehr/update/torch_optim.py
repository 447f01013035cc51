"""The update: a released sum becomes one step of a torch optimizer. The only writer of ``p.grad``.

>>> from torch import nn
>>> model = nn.Linear(2, 1, bias=False)
>>> _ = nn.init.zeros_(model.weight)
>>> updater = Updater(sgd(learning_rate=0.5, momentum=0.9), model)
>>> updater.step(ReleasedSum(values={"weight": torch.tensor([[4.0, 8.0]])}), divisor=2.0, step=0)
>>> model.weight.detach()
tensor([[-1., -2.]])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn, optim

from lehr import schedules, validate
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum
from lehr.schedules import CONSTANT, Schedule
from lehr.update import optimizer_state
from lehr.update.optimizer_state import Number, StateCopy
from lehr.update.optimizers import OPTIMIZERS, checked

Factory: TypeAlias = Callable[[list[nn.Parameter]], optim.Optimizer]


class BuildsOptimizer(Protocol):
    """An optimizer that is not yet bound to a model, and the schedule of its learning rate."""

    @property
    def schedule(self) -> Schedule:
        """What the learning rate is multiplied by at each step."""

    def build(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        """The optimizer over these parameters."""

    def to_json(self) -> dict[str, object]:
        """What a run writes down about it."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """A torch optimizer by its name, with its settings. Every field is public.

    >>> Update(optimizer="adadelta", learning_rate=0.5, arguments={"rho": 0.9}).to_json()["schedule"]
    {'kind': 'constant'}
    >>> Update(optimizer="adadelta", learning_rate=0.5, arguments={"roh": 0.9})
    Traceback (most recent call last):
    ...
    lehr.errors.InvalidValue: argument of adadelta must be one of eps, rho, weight_decay; given: 'roh'
    """

    optimizer: str
    learning_rate: float
    arguments: Mapping[str, object] = field(default_factory=dict)
    schedule: Schedule = CONSTANT

    def __post_init__(self) -> None:
        object.__setattr__(self, "learning_rate", validate.positive(learning_rate=self.learning_rate))
        object.__setattr__(self, "arguments", MappingProxyType(checked(self.optimizer, self.arguments)))

    def __hash__(self) -> int:
        return hash((self.optimizer, self.learning_rate, tuple(self.arguments.items()), self.schedule))

    def __reduce__(self) -> tuple[object, ...]:
        # The read-only view of the arguments can neither be copied nor sent to another process.
        return _rebuilt, (self.optimizer, self.learning_rate, dict(self.arguments), self.schedule)

    def build(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        """The optimizer over these parameters."""
        return OPTIMIZERS[self.optimizer].over(parameters, lr=self.learning_rate, **self.arguments)

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in self.arguments.items()}
        return {
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "arguments": arguments,
            "schedule": schedules.to_json(self.schedule),
        }

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """The update of a JSON form. Missing or surplus fields and bad values are refused."""
        expected = {"optimizer", "learning_rate", "arguments", "schedule"}
        if not isinstance(shape, dict) or set(shape) != expected or not isinstance(shape["arguments"], dict):
            raise InvalidValue("update", allowed=f"an object with the fields {sorted(expected)}", given=shape)
        return cls(**{**shape, "schedule": schedules.from_json(shape["schedule"])})


def _rebuilt(optimizer: str, learning_rate: float, arguments: Mapping[str, object], schedule: Schedule) -> Update:
    return Update(optimizer=optimizer, learning_rate=learning_rate, arguments=arguments, schedule=schedule)


def sgd(
    learning_rate: float,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    schedule: Schedule = CONSTANT,
) -> Update:
    """Stochastic gradient descent."""
    arguments = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov}
    return Update(optimizer="sgd", learning_rate=learning_rate, arguments=arguments, schedule=schedule)


def adam(
    learning_rate: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    schedule: Schedule = CONSTANT,
) -> Update:
    """Adam (Kingma & Ba 2015). Its second moment sees the noise as well, which makes its steps shorter."""
    arguments = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
    return Update(optimizer="adam", learning_rate=learning_rate, arguments=arguments, schedule=schedule)


def adamw(
    learning_rate: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    schedule: Schedule = CONSTANT,
) -> Update:
    """Adam with the weight decay apart from the gradient (Loshchilov & Hutter 2019)."""
    arguments = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
    return Update(optimizer="adamw", learning_rate=learning_rate, arguments=arguments, schedule=schedule)


@dataclass(frozen=True, kw_only=True)
class CustomUpdate:
    """An optimizer that the user builds. It is described by its class and defaults, and cannot be read back."""

    factory: Factory
    schedule: Schedule = CONSTANT

    def __post_init__(self) -> None:
        self.build([nn.Parameter(torch.zeros(1, 1))])

    def build(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        """The optimizer over these parameters, refused where it cannot work with one released sum a step."""
        optimizer: object = self.factory(parameters)
        if not isinstance(optimizer, optim.Optimizer):
            raise InvalidValue("factory", allowed="a function that returns a torch optimizer", given=optimizer)
        _refuse_closures(optimizer)
        if not all("lr" in group for group in optimizer.param_groups):
            raise InvalidValue("factory", allowed="an optimizer with a learning rate 'lr'", given=_name_of(optimizer))
        return optimizer

    def to_json(self) -> dict[str, object]:
        """What a run writes down: the class, its defaults, and the schedule."""
        optimizer = self.build([nn.Parameter(torch.zeros(1, 1))])
        defaults = {name: _writable(value) for name, value in optimizer.defaults.items()}
        return {"custom": _name_of(optimizer), "defaults": defaults, "schedule": schedules.to_json(self.schedule)}


def custom(factory: Factory, *, schedule: Schedule = CONSTANT) -> CustomUpdate:
    """Any torch optimizer: ``factory(parameters)`` builds it, and is tried once on a parameter with one number.

    >>> custom(lambda parameters: torch.optim.ASGD(parameters, lr=0.1)).to_json()["custom"]
    'torch.optim.asgd.ASGD'
    """
    return CustomUpdate(factory=factory, schedule=schedule)


@dataclass(frozen=True)
class Snapshot:
    """The weights and the state of the optimizer at one moment."""

    weights: tuple[Tensor, ...]
    state: StateCopy


class Updater:
    """The optimizer of one model. It takes released sums and nothing else.

    The trainable parameters are those that require a gradient when it is built.
    """

    def __init__(self, update: BuildsOptimizer, model: nn.Module) -> None:
        self.update = update
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise InvalidValue("model", allowed="a module with parameters that require a gradient", given=type(model))
        self._weights: list[Tensor] = list(self._parameters.values())
        self._optimizer = update.build(list(self._parameters.values()))
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]

    def learning_rate(self, step: int) -> float:
        """The learning rate of this step; of the first group, where a custom optimizer has several."""
        return self._rates[0] * self.update.schedule.factor(step)

    def step(self, released: ReleasedSum, *, divisor: float, step: int, step_scale: float = 1.0) -> None:
        """Divide the sum by a public constant and move the weights by it. ``step`` counts from zero."""
        grads = self._mean(released, divisor)
        factor = step_scale * self.update.schedule.factor(step)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        for parameter, grad in zip(self._weights, grads, strict=True):
            parameter.grad = grad
        self._optimizer.step()
        for parameter in self._weights:
            parameter.grad = None

    def snapshot(self) -> Snapshot:
        """A copy of the weights and of the optimizer's state."""
        weights = tuple(parameter.detach().clone() for parameter in self._weights)
        return Snapshot(weights, optimizer_state.copied(self._optimizer, self._parameters))

    def restore_weights(self, snapshot: Snapshot) -> None:
        """Go back to the weights of a snapshot, and leave momentum and counters as they are."""
        with torch.no_grad():
            torch._foreach_copy_(self._weights, list(snapshot.weights))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, momentum and counters included; it can be gone back to again."""
        self.restore_weights(snapshot)
        optimizer_state.put_back(self._optimizer, self._parameters, snapshot.state)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the optimizer's state, not copies; the weights are the model's own to keep.

        Names are those of the parameters: ``optimizer/layer.weight/momentum_buffer``.
        """
        found = optimizer_state.tensors(self._optimizer, self._parameters)
        return {_PREFIX + name: value for name, value in found.items()}

    def scalars(self) -> dict[str, Number]:
        """What else a checkpoint needs: numbers that JSON can hold."""
        found = optimizer_state.numbers(self._optimizer, self._parameters)
        return {_PREFIX + name: value for name, value in found.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Number] | None = None) -> None:
        """Take over a state of an updater of the same kind over the same model, bit for bit.

        Tensors whose names do not begin with ``optimizer/`` are left to others.
        """
        values = _without_prefix(tensors)
        optimizer_state.load(self._optimizer, self._parameters, values, _without_prefix(scalars or {}))

    def _mean(self, released: ReleasedSum, divisor: float) -> list[Tensor]:
        given: object = released
        if not isinstance(given, ReleasedSum):
            allowed = "a ReleasedSum: only a sum with its noise may reach the weights"
            raise InvalidValue("released", allowed=allowed, given=type(released))
        values = released.values
        if values.keys() != self._parameters.keys():
            raise InvalidValue("released", allowed=f"a sum for {sorted(self._parameters)}", given=sorted(values))
        means = torch._foreach_div([values[name] for name in self._parameters], validate.positive(divisor=divisor))
        return [mean.to(weight.dtype) for mean, weight in zip(means, self._weights, strict=True)]


_PREFIX = "optimizer/"


def _without_prefix(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_PREFIX): value for name, value in named.items() if name.startswith(_PREFIX)}


def _refuse_closures(optimizer: optim.Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        reason = "an optimizer that takes one gradient a step: a closure would look at the records again, uncharged"
        raise InvalidValue("factory", allowed=reason, given=_name_of(optimizer))


def _name_of(optimizer: object) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"


def _writable(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_writable(part) for part in value]
    return type(value).__qualname__
