from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from lehr.gradients.calling import Called
from tests.gradients.small_models import CASES, untouched


def under_two_names() -> nn.Sequential:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer).double()


def drawn_like(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}


def test_a_layer_under_two_names_is_run_with_the_values_and_keeps_its_own_weights() -> None:
    model, other = under_two_names(), under_two_names()
    before, values = untouched(model), drawn_like(model)
    other.load_state_dict(values, strict=False)
    inputs = torch.randn(2, 3, dtype=torch.float64)
    assert torch.equal(Called(model)(values, (inputs,), {}), other(inputs))
    assert untouched(model) == before  # with the identity of every parameter


def test_weights_are_kept_when_the_model_fails_half_way() -> None:
    model = under_two_names()
    before = untouched(model)
    with pytest.raises(RuntimeError, match="shapes"):
        Called(model)(drawn_like(model), (torch.randn(2, 7, dtype=torch.float64),), {})
    assert untouched(model) == before


def test_torch_itself_leaves_values_behind() -> None:
    """Should this fail, ``Called`` is no longer needed."""
    model = under_two_names()
    before = untouched(model)
    functional_call(model, drawn_like(model), (torch.randn(2, 3, dtype=torch.float64),))
    assert untouched(model) != before


@pytest.mark.parametrize("name", CASES)
def test_every_model_is_run_with_the_values_and_left_as_it_was(name: str) -> None:
    model, other = CASES[name].model(), CASES[name].model()
    before, values = untouched(model), drawn_like(model)
    other.load_state_dict(values, strict=False)
    inputs, _ = CASES[name].batch(2)
    torch.testing.assert_close(Called(model)(values, (inputs,), {}), other(inputs))
    assert untouched(model) == before


def test_a_shared_weight_is_given_under_its_first_name_to_every_layer_that_has_it() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    model[2].weight = model[0].weight
    found = Called(model)({"0.weight": 2 * torch.eye(3)}, (torch.ones(1, 3),), {})
    torch.testing.assert_close(found, 2 * torch.tanh(torch.full((1, 3), 2.0)))


def test_gradients_of_a_shared_weight_come_from_all_its_uses() -> None:
    model = under_two_names()
    inputs = torch.randn(2, 3, dtype=torch.float64)
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = grad(lambda values: Called(model)(values, (inputs,), {}).sum())(values)
    torch.autograd.backward(model(inputs).sum())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_what_is_not_given_is_the_models_own() -> None:
    model = nn.Linear(3, 3)
    found = Called(model)({"weight": torch.zeros(3, 3)}, (torch.ones(1, 3),), {})
    assert torch.equal(found[0], model.bias)


def test_a_name_that_the_model_does_not_have_changes_nothing() -> None:
    model = nn.Linear(3, 3)
    assert torch.equal(Called(model)({"other": torch.zeros(1)}, (torch.ones(1, 3),), {}), model(torch.ones(1, 3)))


def test_inputs_may_be_given_by_keyword() -> None:
    model = nn.Linear(3, 3)
    inputs = torch.ones(1, 3)
    assert torch.equal(Called(model)({}, (), {"input": inputs}), model(inputs))


class Shifted(nn.Module):
    def __init__(self, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift)
        self.register_buffer("nothing", None)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.get_buffer("shift")


def test_a_shared_buffer_is_given_to_every_layer_that_has_it() -> None:
    shift = torch.zeros(1)
    model = nn.Sequential(Shifted(shift), Shifted(shift))
    assert Called(model)({"0.shift": torch.ones(1)}, (torch.zeros(1),), {}).item() == 2
    assert model.get_buffer("1.shift") is shift
