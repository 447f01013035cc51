"""The state of an optimizer under names: what is written is what is read, and nothing else is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from lehr.errors import InvalidValue
from lehr.update import optimizer_state


class Counting(optim.Optimizer):
    """An optimizer that keeps plain numbers: one for each parameter, and one beside its settings."""

    def __init__(self, parameters: list[nn.Parameter], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "seen": 0, "name": "counting"})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["seen"] += 1
            for parameter in group["params"]:
                self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1


def parameters() -> dict[str, nn.Parameter]:
    return {"layer.weight": nn.Parameter(torch.ones(2, 2)), "layer.bias": nn.Parameter(torch.ones(2))}


def stepped(kind: Any, held: dict[str, nn.Parameter], times: int = 2, **settings: Any) -> Any:
    optimizer = kind(list(held.values()), lr=0.1, **settings)
    for _ in range(times):
        for parameter in held.values():
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
    return optimizer


def test_tensors_have_the_names_of_their_parameters() -> None:
    held = parameters()
    found = optimizer_state.tensors(stepped(optim.SGD, held, momentum=0.9), held)
    assert set(found) == {"layer.weight/momentum_buffer", "layer.bias/momentum_buffer"}


def test_numbers_beside_the_tensors_are_read_back() -> None:
    held, others = parameters(), parameters()
    old, new = stepped(Counting, held), stepped(Counting, others, times=5)
    numbers = optimizer_state.numbers(old, held)
    assert numbers == {"layer.weight/count": 2, "layer.bias/count": 2, "settings/0/lr": 0.1, "settings/0/seen": 2}
    optimizer_state.load(new, others, optimizer_state.tensors(old, held), numbers)
    assert optimizer_state.numbers(new, others) == numbers


def test_a_state_that_no_file_can_hold_is_named() -> None:
    held = parameters()
    optimizer = stepped(Counting, held)
    optimizer.state[held["layer.bias"]]["history"] = [1, 2]
    with pytest.raises(InvalidValue, match=r"layer\.bias/history"):
        optimizer_state.numbers(optimizer, held)


@pytest.mark.parametrize("name", ["other.weight/momentum_buffer", "momentum_buffer", "settings/0/surplus"])
def test_values_of_another_model_are_refused(name: str) -> None:
    held = parameters()
    with pytest.raises(InvalidValue, match=name):
        optimizer_state.load(stepped(optim.SGD, held), held, {name: torch.zeros(2)}, {})


def test_loading_nothing_forgets_what_was() -> None:
    held = parameters()
    optimizer = stepped(optim.Adam, held)
    optimizer_state.load(optimizer, held, {}, {})
    assert optimizer_state.tensors(optimizer, held) == {}


def test_what_is_loaded_is_a_copy() -> None:
    held = parameters()
    optimizer = stepped(optim.Adam, held)
    file = {name: value.clone() for name, value in optimizer_state.tensors(optimizer, held).items()}
    kept = {name: value.clone() for name, value in file.items()}
    optimizer_state.load(optimizer, held, file, {})
    for parameter in held.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(torch.equal(file[name], kept[name]) for name in kept)


def test_a_copy_is_put_back_with_settings_and_with_what_did_not_exist() -> None:
    held = parameters()
    optimizer = Counting(list(held.values()))
    before = optimizer_state.copied(optimizer, held)
    optimizer.step()
    optimizer_state.put_back(optimizer, held, before)
    assert optimizer.param_groups[0]["seen"] == 0
    assert not any(optimizer.state.get(parameter) for parameter in held.values())
