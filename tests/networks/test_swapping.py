"""Another activation in a model that is already there."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.networks import build
from lehr.networks.swapping import KINDS, with_activation
from lehr.networks.tempered_sigmoid import TemperedSigmoid


def nested() -> nn.Sequential:
    inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), inner, nn.Dropout(0.5), nn.Linear(4, 2))


class Functional(nn.Module):
    """Its activation is a function, which nobody can find."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, values: Tensor) -> Tensor:
        return torch.relu(self.layer(values))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_activation_is_replaced(kind: type[nn.Module]) -> None:
    swapped = with_activation(nn.Sequential(nn.Linear(2, 2), kind()), nn.Tanh)
    assert [type(layer) for layer in swapped.children()] == [nn.Linear, nn.Tanh]


def test_the_given_model_stays_as_it_was_and_all_else_is_kept() -> None:
    model = nested()
    before = str(model)
    swapped = with_activation(model, partial(TemperedSigmoid, 1, 3, 0.5))
    assert str(model) == before
    layers = [layer for layer in swapped.modules() if isinstance(layer, TemperedSigmoid)]
    assert len(layers) == len({id(layer) for layer in layers}) == 2
    assert all(layer.inverse_temperature == 3 for layer in layers)
    assert not any(isinstance(layer, nn.ReLU | nn.GELU) for layer in swapped.modules())
    for one, other in zip(model.parameters(), swapped.parameters(), strict=True):
        assert one is not other
        assert torch.equal(one, other)


def test_each_layer_can_have_its_own() -> None:
    swapped = with_activation(nested(), {"1": partial(TemperedSigmoid, 2, 3, 1), "2.1": "tempered_sigmoid(mnist)"})
    assert repr(swapped.get_submodule("1")) == repr(TemperedSigmoid(2, 3, 1))
    assert repr(swapped.get_submodule("2.1")) == repr(TemperedSigmoid(1.97, 2.27, 1.15))
    some = with_activation(nested(), {"1": nn.Tanh})
    assert [type(some.get_submodule(path)) for path in ("1", "2.1")] == [nn.Tanh, nn.GELU]


def test_a_network_by_its_name_computes_what_it_would_had_it_been_built_so() -> None:
    torch.manual_seed(0)
    swapped = with_activation(build("small_cnn", activation="relu"), "tempered_sigmoid(2, 3, 1)")
    torch.manual_seed(0)
    built = build("small_cnn", activation="tempered_sigmoid(2, 3, 1)")
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(swapped(images), built(images))


def test_one_module_in_two_places_is_replaced_by_one_module() -> None:
    shared = nn.ReLU()
    swapped = with_activation(nn.Sequential(shared, nn.Linear(2, 2), shared), nn.Tanh)
    layers = list(swapped._modules.values())
    assert isinstance(layers[0], nn.Tanh)
    assert layers[0] is layers[2]


def test_only_the_given_kinds_are_replaced() -> None:
    swapped = with_activation(nested(), nn.Tanh, replacing=(nn.GELU,))
    assert [type(swapped.get_submodule(path)) for path in ("1", "2.1")] == [nn.ReLU, nn.Tanh]


def test_a_model_that_is_an_activation_becomes_the_other_and_modes_are_kept() -> None:
    swapped = with_activation(nn.ReLU().eval(), nn.Tanh)
    assert isinstance(swapped, nn.Tanh)
    assert not swapped.training


@pytest.mark.parametrize("model", [Functional(), nn.Linear(2, 2)], ids=["Functional", "Linear"])
def test_a_model_without_activations_that_are_modules_is_refused_by_name(model: nn.Module) -> None:
    says = (
        f"model must be a model with activations that are modules .*cannot be swapped; given: '{type(model).__name__}'"
    )
    with pytest.raises(InvalidValue, match=says):
        with_activation(model, nn.Tanh)


@pytest.mark.parametrize(
    "activation, says",
    [
        ({"7": nn.Tanh}, r"path of an activation must be one of 1, 2\.1; given: '7'"),
        ({"0": nn.Tanh}, "path of an activation must be one of"),
        (nn.Tanh(), "activation must be what makes one when it is called"),
        ({"1": nn.Tanh()}, "activation must be what makes one when it is called"),
        ("step", "activation must be one of elu"),
        (None, "activation must be one of elu"),
    ],
    ids=["unknown path", "path of no activation", "an activation itself", "one by its path", "a word", "nothing"],
)
def test_what_cannot_be_put_there_is_refused(activation: Any, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        with_activation(nested(), activation)
