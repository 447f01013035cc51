"""The state of a torch optimizer as named tensors and numbers: copied, put back, and written down.

A torch optimizer keeps a dictionary of values for every parameter, which is empty before the first step, and some keep
numbers that move beside their settings. Here both have names made of the parameter's own, which a file can hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn, optim

from lehr.errors import InvalidValue

Number: TypeAlias = "bool | int | float | None"
Parameters: TypeAlias = Mapping[str, nn.Parameter]

_ON_CPU = "on_cpu/"  # some optimizers keep their counters there, where reading them does not wait for the device


@dataclass(frozen=True)
class StateCopy:
    """What an optimizer knew at one moment. An entry of None had no state yet."""

    states: tuple[dict[str, Any] | None, ...]
    settings: tuple[dict[str, Any], ...]


def copied(optimizer: optim.Optimizer, parameters: Parameters) -> StateCopy:
    """A copy that later steps do not touch."""
    return StateCopy(
        tuple(_copied_values(optimizer.state.get(parameter)) for parameter in parameters.values()),
        tuple({name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups),
    )


def put_back(optimizer: optim.Optimizer, parameters: Parameters, copy: StateCopy) -> None:
    """Make the optimizer what it was. The copy can be used again."""
    for parameter, values in zip(parameters.values(), copy.states, strict=True):
        if values is None:
            optimizer.state.pop(parameter, None)
        else:
            optimizer.state[parameter] = _copied_values(values)
    for group, settings in zip(optimizer.param_groups, copy.settings, strict=True):
        group.update(settings)


def tensors(optimizer: optim.Optimizer, parameters: Parameters) -> dict[str, Tensor]:
    """The tensors of the state themselves, not copies, under names such as ``layer.weight/momentum_buffer``."""
    return {name: value for name, value in _values(optimizer, parameters) if isinstance(value, Tensor)}


def numbers(optimizer: optim.Optimizer, parameters: Parameters) -> dict[str, Number]:
    """Every number of the state that is not a tensor, and the settings that are numbers."""
    found = {name: _number(name, value) for name, value in _values(optimizer, parameters) if not _is_tensor(value)}
    for place, group in enumerate(optimizer.param_groups):
        found |= {f"settings/{place}/{name}": value for name, value in group.items() if _is_number(value)}
    stored = tensors(optimizer, parameters).items()
    return found | {_ON_CPU + name: True for name, value in stored if value.device.type == "cpu"}


def load(
    optimizer: optim.Optimizer, parameters: Parameters, values: Mapping[str, Tensor], settings: Mapping[str, Number]
) -> None:
    """Put the values of ``tensors`` and ``numbers`` into an optimizer of the same kind over the same parameters."""
    states: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    groups = {f"settings/{place}": group for place, group in enumerate(optimizer.param_groups)}
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
    for owner, state in states.items():
        if state:
            optimizer.state[parameters[owner]] = state
        else:
            optimizer.state.pop(parameters[owner], None)


def _values(optimizer: optim.Optimizer, parameters: Parameters) -> Iterator[tuple[str, Any]]:
    for owner, parameter in parameters.items():
        for name, value in optimizer.state.get(parameter, {}).items():
            yield f"{owner}/{name}", value


def _copied_values(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    return {name: value.detach().clone() if _is_tensor(value) else value for name, value in values.items()}


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _number(name: str, value: object) -> Number:
    if value is None or isinstance(value, bool | int | float):
        return value
    raise InvalidValue("optimizer state", allowed="tensors and numbers, to be written down", given=f"{name}: {value!r}")
