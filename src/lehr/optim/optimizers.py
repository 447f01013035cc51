"""Optimizers: a released sum becomes one step of a torch optimizer. The only writer of ``p.grad``.

- ``OPTIMIZERS``, ``Update``, ``sgd``, ``adam``, ``adamw``: torch's optimizers by name, with checked arguments
- ``custom``: any other torch optimizer
- ``Updater``: the optimizer of one model, with snapshots and the state for checkpoints
- ``NormalisedSGD``: steps of a given length, for AGD (Lee & Kifer 2018)

>>> model = nn.Linear(2, 1, bias=False)
>>> _ = nn.init.zeros_(model.weight)
>>> updater = Updater(sgd(learning_rate=0.5, momentum=0.9), model)
>>> updater.step(ReleasedSum(values={"weight": torch.tensor([[4.0, 8.0]])}), divisor=2.0, step=0)
>>> model.weight.detach()
tensor([[-1., -2.]])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn, optim

from lehr import schedules, validate
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum
from lehr.schedules import CONSTANT, Schedule


class NormalisedSGD(optim.Optimizer):
    """Moves by ``lr`` along the gradient divided by its norm. A gradient of zero moves nothing."""

    def __init__(self, params: Any, lr: float, foreach: bool = True) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            grads = [parameter.grad for parameter in moved]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            if norm > 0:
                torch._foreach_add_(moved, torch._foreach_div(grads, norm), alpha=-group["lr"])


Check = Callable[..., object]


@dataclass(frozen=True)
class NamedOptimizer:
    """A torch optimizer and the checks of its arguments besides the learning rate."""

    build: Callable[..., optim.Optimizer]
    arguments: Mapping[str, Check]
    conflict: Callable[[Mapping[str, object]], str | None] = field(default=lambda arguments: None)
    fused: bool = False

    def over(self, parameters: list[nn.Parameter], **settings: Any) -> optim.Optimizer:
        """The optimizer over these parameters, in torch's fastest form of it that moves them where they are."""
        if self.fused and all(map(_can_be_fused, parameters)):
            return self.build(parameters, fused=True, **settings)
        return self.build(parameters, foreach=True, **settings)


def _can_be_fused(parameter: nn.Parameter) -> bool:
    """On a CPU torch's fused SGD moves no more than the last few numbers of a tensor in half precision."""
    on = parameter.device.type
    return on == "cuda" or (on == "cpu" and parameter.dtype in (torch.float32, torch.float64))


def below_one(**named: object) -> float:
    """A number in [0, 1)."""
    value = validate.non_negative(**named)
    if not value < 1:
        raise InvalidValue(*named, allowed="a number in [0, 1)", given=value)
    return value


def _two_below_one(**named: object) -> tuple[float, float]:
    first, second = _pair("a pair of numbers in [0, 1)", named)
    (name,) = named
    return below_one(**{name: first}), below_one(**{name: second})


def _adafactor_eps(**named: object) -> tuple[float | None, float]:
    first, second = _pair("a pair of numbers > 0, of which the first may be None", named)
    (name,) = named
    return first if first is None else validate.positive(**{name: first}), validate.positive(**{name: second})


def _pair(allowed: str, named: dict[str, object]) -> tuple[object, object]:
    ((name, value),) = named.items()
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidValue(name, allowed=allowed, given=value)
    return value[0], value[1]


def _negative(**named: object) -> float:
    value = validate.finite(**named)
    if not value < 0:
        raise InvalidValue(*named, allowed="a finite number < 0", given=value)
    return value


def _nesterov_conflict(arguments: Mapping[str, object]) -> str | None:
    if arguments.get("nesterov") and (not arguments.get("momentum") or arguments.get("dampening")):
        return "nesterov with a momentum above 0 and no dampening"
    return None


_ADAM: dict[str, Check] = {"betas": _two_below_one, "eps": validate.positive, "weight_decay": validate.non_negative}

OPTIMIZERS: Mapping[str, NamedOptimizer] = {
    "sgd": NamedOptimizer(
        optim.SGD,
        {
            "momentum": below_one,
            "dampening": below_one,
            "weight_decay": validate.non_negative,
            "nesterov": validate.true_or_false,
        },
        _nesterov_conflict,
        fused=True,
    ),
    "normalised-sgd": NamedOptimizer(NormalisedSGD, {}),
    "adam": NamedOptimizer(optim.Adam, {**_ADAM, "amsgrad": validate.true_or_false}, fused=True),
    "adamw": NamedOptimizer(optim.AdamW, {**_ADAM, "amsgrad": validate.true_or_false}, fused=True),
    "nadam": NamedOptimizer(
        optim.NAdam,
        {**_ADAM, "momentum_decay": validate.non_negative, "decoupled_weight_decay": validate.true_or_false},
    ),
    "radam": NamedOptimizer(optim.RAdam, {**_ADAM, "decoupled_weight_decay": validate.true_or_false}),
    "adamax": NamedOptimizer(optim.Adamax, _ADAM),
    "rmsprop": NamedOptimizer(
        optim.RMSprop,
        {
            "alpha": below_one,
            "eps": validate.positive,
            "weight_decay": validate.non_negative,
            "momentum": below_one,
            "centered": validate.true_or_false,
        },
    ),
    "adagrad": NamedOptimizer(
        optim.Adagrad,
        {
            "lr_decay": validate.non_negative,
            "weight_decay": validate.non_negative,
            "initial_accumulator_value": validate.non_negative,
            "eps": validate.positive,
        },
    ),
    "adadelta": NamedOptimizer(
        optim.Adadelta, {"rho": below_one, "eps": validate.positive, "weight_decay": validate.non_negative}
    ),
    "adafactor": NamedOptimizer(
        optim.Adafactor,
        {
            "beta2_decay": _negative,
            "eps": _adafactor_eps,
            "d": partial(validate.at_least, 1),
            "weight_decay": validate.non_negative,
        },
    ),
}


def check_arguments(optimizer: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a named optimizer, each as its own kind of number. Unknown ones are refused."""
    known = OPTIMIZERS[validate.one_of(OPTIMIZERS, optimizer=optimizer)]
    for name in arguments:
        if name not in known.arguments:
            allowed = f"one of {', '.join(sorted(known.arguments))}"
            raise InvalidValue(f"argument of {optimizer}", allowed=allowed, given=name)
    found = {name: known.arguments[name](**{name: value}) for name, value in sorted(arguments.items())}
    if allowed_instead := known.conflict(found):
        raise InvalidValue(f"arguments of {optimizer}", allowed=allowed_instead, given=found)
    return found


Number: TypeAlias = "bool | int | float | None"
Parameters: TypeAlias = Mapping[str, nn.Parameter]

_ON_CPU = "on_cpu/"  # some optimizers keep their counters there, where reading them does not wait for the device


def state_tensors(optimizer: optim.Optimizer, parameters: Parameters) -> dict[str, Tensor]:
    """The tensors of the optimizer's state, not copied, under names such as ``layer.weight/momentum_buffer``."""
    return {name: value for name, value in _values(optimizer, parameters) if isinstance(value, Tensor)}


def state_numbers(optimizer: optim.Optimizer, parameters: Parameters) -> dict[str, Number]:
    """Every number of the optimizer's state that is not a tensor, and its numeric settings."""
    found: dict[str, Number] = {}
    for name, value in _values(optimizer, parameters):
        if isinstance(value, Tensor):
            found |= {_ON_CPU + name: True} if value.device.type == "cpu" else {}
        elif _is_number(value):
            found[name] = value
        else:
            raise InvalidValue("optimizer state", allowed="tensors and numbers", given=f"{name}: {value!r}")
    for index, group in enumerate(optimizer.param_groups):
        found |= {f"settings/{index}/{name}": value for name, value in group.items() if _is_number(value)}
    return found


def load_state(
    optimizer: optim.Optimizer, parameters: Parameters, values: Mapping[str, Tensor], settings: Mapping[str, Number]
) -> None:
    """Load what ``state_tensors`` and ``state_numbers`` returned, for the same optimizer over the same parameters."""
    states: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    groups = {f"settings/{index}": group for index, group in enumerate(optimizer.param_groups)}
    for full_name, value in {**values, **settings}.items():
        owner, _, name = full_name.removeprefix(_ON_CPU).rpartition("/")
        if full_name.startswith(_ON_CPU) and full_name.removeprefix(_ON_CPU) in values:
            continue
        if owner in groups and name in groups[owner] and not isinstance(value, Tensor):
            groups[owner][name] = value
        elif owner in states:
            device = "cpu" if _ON_CPU + full_name in settings else parameters[owner].device
            states[owner][name] = value.detach().to(device, copy=True) if isinstance(value, Tensor) else value
        else:
            allowed = f"values of the {len(parameters)} parameters of this model"
            raise InvalidValue("optimizer state", allowed=allowed, given=full_name)
    _set_states(optimizer, {parameters[owner]: state for owner, state in states.items()})


def _values(optimizer: optim.Optimizer, parameters: Parameters) -> Iterator[tuple[str, Any]]:
    for owner, parameter in parameters.items():
        for name, value in optimizer.state.get(parameter, {}).items():
            yield f"{owner}/{name}", value


def _set_states(optimizer: optim.Optimizer, states: Mapping[nn.Parameter, dict[str, Any]]) -> None:
    """Replace the state of each parameter. An empty one is removed, as before the first step."""
    for parameter, state in states.items():
        if state:
            optimizer.state[parameter] = state
        else:
            optimizer.state.pop(parameter, None)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float)


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
        object.__setattr__(self, "arguments", MappingProxyType(check_arguments(self.optimizer, self.arguments)))

    def __hash__(self) -> int:
        return hash((self.optimizer, self.learning_rate, tuple(self.arguments.items()), self.schedule))

    def __reduce__(self) -> tuple[object, ...]:
        # The read-only view of the arguments can neither be copied nor sent to another process.
        fields = {name: getattr(self, name) for name in ("optimizer", "learning_rate", "schedule")}
        return partial(Update, arguments=dict(self.arguments), **fields), ()

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
    """A copy of the weights, and of the optimizer's state and settings. It can be restored more than once."""

    weights: list[Tensor]
    states: list[dict[str, Any]]
    settings: list[dict[str, Any]]


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
        optimizer = self._optimizer
        return Snapshot(
            weights=[parameter.detach().clone() for parameter in self._weights],
            states=[_copied(optimizer.state.get(parameter, {})) for parameter in self._parameters.values()],
            settings=[{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups],
        )

    def restore_weights(self, snapshot: Snapshot) -> None:
        """Restore the weights only, not momentum and counters."""
        with torch.no_grad():
            torch._foreach_copy_(self._weights, snapshot.weights)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the weights and the optimizer's state."""
        self.restore_weights(snapshot)
        states = zip(self._parameters.values(), map(_copied, snapshot.states), strict=True)
        _set_states(self._optimizer, dict(states))
        for group, settings in zip(self._optimizer.param_groups, snapshot.settings, strict=True):
            group.update(settings)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the optimizer's state, not copied: ``optimizer/layer.weight/momentum_buffer``."""
        found = state_tensors(self._optimizer, self._parameters)
        return {_PREFIX + name: value for name, value in found.items()}

    def scalars(self) -> dict[str, Number]:
        """The numbers of the optimizer's state, for a checkpoint's JSON header."""
        found = state_numbers(self._optimizer, self._parameters)
        return {_PREFIX + name: value for name, value in found.items()}

    def load_tensors(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Number] | None = None) -> None:
        """Load the state of a checkpoint, bit for bit. Tensors without the prefix ``optimizer/`` are ignored."""
        values = _without_prefix(tensors)
        load_state(self._optimizer, self._parameters, values, _without_prefix(scalars or {}))

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
