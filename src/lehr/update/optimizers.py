"""The optimizers that go by a name: a closed table, each with the arguments it takes and what they may be.

Not in it: LBFGS, which asks for the loss several times a step, and each answer would be another look at the records;
Rprop and ASGD, which read the learning rate only once or one step late; and those that take sparse gradients, since
noise is never sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn, optim

from lehr import validate
from lehr.errors import InvalidValue
from lehr.update.normalised import NormalisedSGD

Check = Callable[..., object]


@dataclass(frozen=True)
class NamedOptimizer:
    """An optimizer of torch and the arguments it takes besides the learning rate."""

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
    """A share that is kept from one step to the next."""
    value = validate.non_negative(**named)
    if not value < 1:
        _refuse("a number in [0, 1)", named)
    return value


def below_one_twice(**named: object) -> tuple[float, float]:
    """A pair of such shares."""
    first, second = _pair("a pair of numbers in [0, 1)", named)
    (name,) = named
    return below_one(**{name: first}), below_one(**{name: second})


def smallest_terms(**named: object) -> tuple[float | None, float]:
    """Adafactor's pair: the smallest squared gradient, where none means the precision of the type, and weight norm."""
    first, second = _pair("a pair of numbers > 0, of which the first may be None", named)
    (name,) = named
    return first if first is None else validate.positive(**{name: first}), validate.positive(**{name: second})


def negative(**named: object) -> float:
    """A finite number below zero."""
    ((name, value),) = named.items()
    number = -validate.positive(**{name: -value}) if isinstance(value, int | float) else 0.0
    return number if number < 0 else _refuse("a finite number < 0", named)


def switch(**named: object) -> bool:
    """On or off."""
    ((_, value),) = named.items()
    return value if isinstance(value, bool) else _refuse("True or False", named)


def _nesterov_alone(arguments: Mapping[str, object]) -> str | None:
    if arguments.get("nesterov") and (not arguments.get("momentum") or arguments.get("dampening")):
        return "nesterov with a momentum above 0 and no dampening"
    return None


def _pair(allowed: str, named: dict[str, object]) -> tuple[object, object]:
    ((_, value),) = named.items()
    if not isinstance(value, list | tuple) or len(value) != 2:
        _refuse(allowed, named)
    first, second = value
    return first, second


def _refuse(allowed: str, named: dict[str, object]) -> NoReturn:
    ((name, value),) = named.items()
    raise InvalidValue(name, allowed=allowed, given=value)


_ADAM: dict[str, Check] = {"betas": below_one_twice, "eps": validate.positive, "weight_decay": validate.non_negative}

OPTIMIZERS: Mapping[str, NamedOptimizer] = {
    "sgd": NamedOptimizer(
        optim.SGD,
        {
            "momentum": below_one,
            "dampening": below_one,
            "weight_decay": validate.non_negative,
            "nesterov": switch,
        },
        _nesterov_alone,
        fused=True,
    ),
    "normalised-sgd": NamedOptimizer(NormalisedSGD, {}),
    "adam": NamedOptimizer(optim.Adam, {**_ADAM, "amsgrad": switch}, fused=True),
    "adamw": NamedOptimizer(optim.AdamW, {**_ADAM, "amsgrad": switch}, fused=True),
    "nadam": NamedOptimizer(
        optim.NAdam, {**_ADAM, "momentum_decay": validate.non_negative, "decoupled_weight_decay": switch}
    ),
    "radam": NamedOptimizer(optim.RAdam, {**_ADAM, "decoupled_weight_decay": switch}),
    "adamax": NamedOptimizer(optim.Adamax, _ADAM),
    "rmsprop": NamedOptimizer(
        optim.RMSprop,
        {
            "alpha": below_one,
            "eps": validate.positive,
            "weight_decay": validate.non_negative,
            "momentum": below_one,
            "centered": switch,
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
            "beta2_decay": negative,
            "eps": smallest_terms,
            "d": partial(validate.at_least, 1),
            "weight_decay": validate.non_negative,
        },
    ),
}


def checked(optimizer: str, arguments: Mapping[str, object]) -> dict[str, object]:
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
