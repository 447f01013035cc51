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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeAlias

import torch
from torch import Tensor, nn, optim

from lehr import schedules, validate
from lehr.errors import InvalidValue
from lehr.files import strict_json
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


OPTIMIZERS: Mapping[str, Callable[..., optim.Optimizer]] = {
    "sgd": optim.SGD,
    "normalised-sgd": NormalisedSGD,
    "adam": optim.Adam,
    "adamw": optim.AdamW,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "adamax": optim.Adamax,
    "rmsprop": optim.RMSprop,
    "adagrad": optim.Adagrad,
    "adadelta": optim.Adadelta,
    "adafactor": optim.Adafactor,
}
_NOT_ARGUMENTS = {"params", "lr", "foreach", "fused", "maximize", "capturable", "differentiable"}
_BELOW_ONE = {"momentum", "dampening", "alpha"}  # torch checks the other ranges itself
_FUSED = {"sgd", "adam", "adamw"}
_ON_CPU = "on_cpu/"  # some optimizers keep their counters there, where reading them does not wait for the device
_PREFIX = "optimizer/"

Number: TypeAlias = "bool | int | float | None"
Factory: TypeAlias = Callable[[list[nn.Parameter]], optim.Optimizer]


def default_arguments(optimizer: str) -> dict[str, Any]:
    """Return the arguments of a named optimizer besides the learning rate, with torch's defaults."""
    known = inspect.signature(OPTIMIZERS[validate.one_of(OPTIMIZERS, optimizer=optimizer)]).parameters
    return {name: known[name].default for name in sorted(known.keys() - _NOT_ARGUMENTS)}


def check_arguments(optimizer: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a named optimizer, each of the type of torch's default. Unknown ones are refused."""
    defaults = default_arguments(optimizer)
    checked: dict[str, object] = {}
    for name, value in sorted(arguments.items()):
        if name not in defaults:
            raise InvalidValue(f"argument of {optimizer}", allowed=f"one of {', '.join(defaults)}", given=name)
        checked[name] = _checked(name, value, defaults[name])
    try:
        OPTIMIZERS[optimizer]([torch.zeros(1, 1)], lr=1.0, **checked)
    except ValueError as error:
        allowed = f"in the range of torch's optimizer ({error})"
        raise InvalidValue(f"arguments of {optimizer}", allowed=allowed, given=checked) from error
    return checked


def _checked(name: str, value: object, default: object) -> object:
    if isinstance(default, bool):
        return validate.true_or_false(**{name: value})
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(default):
            raise InvalidValue(name, allowed=f"{len(default)} numbers", given=value)
        return tuple(_checked(name, *pair) for pair in zip(value, default, strict=True))
    if value is None and default is None:
        return None
    number = validate.finite(**{name: value})
    if name in _BELOW_ONE and not number < 1:
        raise InvalidValue(name, allowed="a number < 1", given=value)
    return number


class BuildsOptimizer(Protocol):
    """An optimizer that is not yet bound to a model, and the schedule of its learning rate."""

    @property
    def schedule(self) -> Schedule:
        """What the learning rate is multiplied by at each step."""

    def build(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        """Return the optimizer over these parameters."""

    def to_json(self) -> dict[str, object]:
        """Return what a run records about it."""


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
        return partial(Update, **{**vars(self), "arguments": dict(self.arguments)}), ()

    def build(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        """Return the optimizer over these parameters, in torch's fastest form that is exact."""
        # On a CPU, torch's fused SGD in half precision moves no more than the last few numbers of a tensor.
        can_be_fused = self.optimizer in _FUSED and all(
            p.device.type == "cuda" or (p.device.type == "cpu" and p.dtype in (torch.float32, torch.float64))
            for p in parameters
        )
        form = {"fused": True} if can_be_fused else {"foreach": True}
        return OPTIMIZERS[self.optimizer](parameters, lr=self.learning_rate, **form, **self.arguments)

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        arguments = {name: list(value) if isinstance(value, tuple) else value for name, value in self.arguments.items()}
        return {
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "arguments": arguments,
            "schedule": schedules.to_json(self.schedule),
        }

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """Return the update of a JSON form. Missing or surplus fields and bad values are refused."""
        given: dict[str, Any] = strict_json.fields("update", shape, [each.name for each in fields(cls)])
        arguments = strict_json.check_object("arguments", given["arguments"])
        return cls(**{**given, "arguments": arguments, "schedule": schedules.from_json(given["schedule"])})


def momentum_of(update: BuildsOptimizer) -> float:
    """Return the momentum of SGD; zero for other optimizers."""
    if not isinstance(update, Update) or update.optimizer != "sgd":
        return 0.0
    return float(update.arguments.get("momentum", 0.0))  # type: ignore[arg-type]


def sgd(learning_rate: float, *, schedule: Schedule = CONSTANT, **arguments: object) -> Update:
    """Stochastic gradient descent, with torch's arguments."""
    return Update(optimizer="sgd", learning_rate=learning_rate, arguments=arguments, schedule=schedule)


def adam(learning_rate: float = 1e-3, *, schedule: Schedule = CONSTANT, **arguments: object) -> Update:
    """Adam (Kingma & Ba 2015), with torch's arguments.

    Its second moment sees the noise as well, which makes its steps shorter.
    """
    return Update(optimizer="adam", learning_rate=learning_rate, arguments=arguments, schedule=schedule)


def adamw(learning_rate: float = 1e-3, *, schedule: Schedule = CONSTANT, **arguments: object) -> Update:
    """Adam with the weight decay apart from the gradient (Loshchilov & Hutter 2019), with torch's arguments."""
    return Update(optimizer="adamw", learning_rate=learning_rate, arguments=arguments, schedule=schedule)


@dataclass(frozen=True, kw_only=True)
class CustomUpdate:
    """An optimizer that the user builds. It is described by its class and defaults, and cannot be read back."""

    factory: Factory
    schedule: Schedule = CONSTANT

    def __post_init__(self) -> None:
        self.build([nn.Parameter(torch.zeros(1, 1))])

    def build(self, parameters: list[nn.Parameter]) -> optim.Optimizer:
        """Return the optimizer over these parameters; one that cannot work with one released sum a step is refused."""
        optimizer: object = self.factory(parameters)
        if not isinstance(optimizer, optim.Optimizer):
            raise InvalidValue("factory", allowed="a function that returns a torch optimizer", given=optimizer)
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            reason = "an optimizer that takes one gradient a step: a closure would look at the records again, uncharged"
            raise InvalidValue("factory", allowed=reason, given=_name_of(optimizer))
        if not all("lr" in group for group in optimizer.param_groups):
            raise InvalidValue("factory", allowed="an optimizer with a learning rate 'lr'", given=_name_of(optimizer))
        return optimizer

    def to_json(self) -> dict[str, object]:
        """Return the class, its defaults, and the schedule."""
        optimizer = self.build([nn.Parameter(torch.zeros(1, 1))])
        defaults = {
            name: value if _is_number(value) or isinstance(value, str | tuple) else type(value).__qualname__
            for name, value in optimizer.defaults.items()
        }
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

    The trainable parameters are those that require a gradient when it is built. A step moves those of them that
    require one then. If some steps move fewer than others, ``moves_all`` must be False.
    """

    def __init__(self, update: BuildsOptimizer, model: nn.Module, *, moves_all: bool = True) -> None:
        self.update = update
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise InvalidValue("model", allowed="a module with parameters that require a gradient", given=type(model))
        self._weights: list[Tensor] = list(self._parameters.values())
        self._optimizer = update.build(list(self._parameters.values()))
        self._rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups if not moves_all else ():
            if group.get("fused"):  # torch's fused SGD fails if only some parameters have a momentum yet
                group |= {"fused": False, "foreach": True}

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of this step; of the first group, where a custom optimizer has several."""
        return self._rates[0] * self.update.schedule.factor(step)

    def step(self, released: ReleasedSum, *, divisor: float, step: int, step_scale: float = 1.0) -> None:
        """Divide the sum by a public constant and move the weights by it. ``step`` counts from zero."""
        grads = self._means(released, divisor)
        factor = step_scale * self.update.schedule.factor(step)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        for name, grad in grads.items():
            self._parameters[name].grad = grad
        self._optimizer.step()
        for parameter in self._weights:
            parameter.grad = None

    def snapshot(self) -> Snapshot:
        """Return a copy of the weights and of the optimizer's state."""
        optimizer = self._optimizer
        return Snapshot(
            weights=[parameter.detach().clone() for parameter in self._weights],
            states=[_copy(optimizer.state.get(parameter, {})) for parameter in self._weights],
            settings=[{key: group[key] for key in group if key != "params"} for group in optimizer.param_groups],
        )

    def restore_weights(self, snapshot: Snapshot) -> None:
        """Restore the weights only, not momentum and counters."""
        with torch.no_grad():
            torch._foreach_copy_(self._weights, snapshot.weights)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore the weights and the optimizer's state."""
        self.restore_weights(snapshot)
        self._set_states(map(_copy, snapshot.states))
        for group, settings in zip(self._optimizer.param_groups, snapshot.settings, strict=True):
            group.update(settings)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the optimizer's state, not copied: ``optimizer/layer.weight/momentum_buffer``."""
        return {name: value for name, value, _ in self._state() if isinstance(value, Tensor)}

    def scalars(self) -> dict[str, Number]:
        """Return the numbers of the optimizer's state, for a checkpoint's JSON header."""
        found: dict[str, Number] = {}
        for name, value, parameter in self._state():
            if isinstance(value, Tensor):
                if value.device.type == "cpu" != parameter.device.type:
                    found[_ON_CPU + name] = True
            elif _is_number(value):
                found[name] = value
            else:
                raise InvalidValue("optimizer state", allowed="tensors and numbers", given=f"{name}: {value!r}")
        for index, group in enumerate(self._optimizer.param_groups):
            settings = {name: value for name, value in group.items() if _is_number(value)}
            found |= {f"{_PREFIX}settings/{index}/{name}": value for name, value in settings.items()}
        return found

    def load_tensors(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Number] | None = None) -> None:
        """Load the state of a checkpoint, bit for bit. Names without the prefix ``optimizer/`` are ignored."""
        scalars = scalars or {}
        states: dict[str, dict[str, Any]] = {_PREFIX + name: {} for name in self._parameters}
        groups = {f"{_PREFIX}settings/{index}": group for index, group in enumerate(self._optimizer.param_groups)}
        for full_name, value in {**tensors, **scalars}.items():
            owner, _, name = full_name.rpartition("/")
            if not full_name.startswith(_PREFIX):
                continue
            if owner in groups and name in groups[owner] and not isinstance(value, Tensor):
                groups[owner][name] = value
            elif owner in states:
                device = (
                    "cpu" if _ON_CPU + full_name in scalars else self._parameters[owner.removeprefix(_PREFIX)].device
                )
                states[owner][name] = value.detach().to(device, copy=True) if isinstance(value, Tensor) else value
            else:
                allowed = f"values of the {len(self._parameters)} parameters of this model"
                raise InvalidValue("optimizer state", allowed=allowed, given=full_name)
        self._set_states(states.values())

    def _state(self) -> Iterator[tuple[str, Any, nn.Parameter]]:
        for owner, parameter in self._parameters.items():
            for name, value in self._optimizer.state.get(parameter, {}).items():
                yield f"{_PREFIX}{owner}/{name}", value, parameter

    def _set_states(self, states: Iterable[dict[str, Any]]) -> None:
        """Replace the state of each parameter. An empty one is removed, as before the first step."""
        for parameter, state in zip(self._parameters.values(), states, strict=True):
            self._optimizer.state.pop(parameter, None)
            if state:
                self._optimizer.state[parameter] = state

    def _means(self, released: ReleasedSum, divisor: float) -> dict[str, Tensor]:
        given: object = released
        if not isinstance(given, ReleasedSum):
            allowed = "a ReleasedSum: only a sum with its noise may reach the weights"
            raise InvalidValue("released", allowed=allowed, given=type(released))
        values, trained = released.of_parameters, [name for name, p in self._parameters.items() if p.requires_grad]
        if values.keys() != set(trained):
            raise InvalidValue("released", allowed=f"a sum for {sorted(trained)}", given=sorted(values))
        means = torch._foreach_div([values[name] for name in trained], validate.positive(divisor=divisor))
        return {name: mean.to(self._parameters[name].dtype) for name, mean in zip(trained, means, strict=True)}


def _copy(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _name_of(optimizer: object) -> str:
    return f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
