from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.layers import Layers, sharing_copy
from lehr.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import CASES, TOKEN, Gain, assert_same_gradients, loss_fn, untouched


def assert_right(model: nn.Module, inputs: Tensor) -> None:
    targets = torch.arange(inputs.shape[0])
    expected = OneByOneEngine(model, loss_fn).gradients(inputs, targets)
    found = GhostEngine(model, loss_fn, compiled=False).gradients(inputs, targets)
    assert_same_gradients(found, expected, records=inputs.shape[0])


@pytest.mark.parametrize("name", CASES)
def test_the_copy_that_is_listened_to_takes_no_memory_of_its_own_and_the_model_is_not_touched(name: str) -> None:
    model = CASES[name].model()
    before = untouched(model)
    layers = Layers(model)
    assert untouched(model) == before
    own, given = dict(layers.model.named_parameters()), dict(model.named_parameters())
    assert list(own) == list(given)
    assert all(own[key].data_ptr() == given[key].data_ptr() for key in given)
    assert not any(own[key] is given[key] for key in given)


def test_buffers_lie_in_the_same_memory_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Doubled())
    copied = sharing_copy(model)
    model.get_buffer("1.factor").fill_(3)
    assert copied.get_buffer("1.factor").item() == 3


def test_shared_parameters_stay_shared_in_the_copy() -> None:
    model = CASES["words"].model()
    copied: Any = sharing_copy(model)
    assert copied.head.weight is copied.table.weight
    assert copied.head.weight is not model.get_parameter("table.weight")


def test_frozen_parameters_stay_frozen_in_the_copy() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert [parameter.requires_grad for parameter in sharing_copy(model).parameters()] == [False] * 2 + [True] * 2


def test_only_layers_with_something_to_train_are_listened_to() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    layers = Layers(model)
    assert list(layers.rules) == ["2"]
    assert layers.names == ("2.weight", "2.bias")


def test_parameters_that_no_rule_answers_for_are_named() -> None:
    assert Layers(CASES["without rule"].model()).without_rule() == {"layers.1.gain"}
    assert Layers(TOKEN.model()).without_rule() == {"token"}
    assert Layers(CASES["attention"].model()).without_rule() == set()


def test_a_parameter_that_a_rule_and_another_layer_share_is_answered_for() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Gain(4), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    layers = Layers(model)
    assert layers.names == ("0.weight", "1.gain")
    assert layers.without_rule() == {"1.gain"}


def test_a_layer_under_two_names_is_one_layer() -> None:
    layer = nn.Linear(5, 5)
    assert_right(nn.Sequential(layer, nn.Tanh(), layer).double(), torch.randn(4, 5, dtype=torch.float64))


class Doubled(nn.Module):
    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.factor


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_gradient_of_a_computed_weight_goes_on_to_what_it_is_computed_from(is_frozen: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5))
    parametrizations.weight_norm(model[0])
    parametrize.register_parametrization(model[2], "weight", Doubled())
    model[2].bias.requires_grad_(not is_frozen)
    assert_right(model.double(), torch.randn(4, 7, 3, dtype=torch.float64).mean(1))


def test_a_parameter_that_no_record_used_has_zeros() -> None:
    model = CASES["images"].model()
    gradients = GhostEngine(model, loss_fn, compiled=False).gradients(*CASES["images"].batch(3))
    unused = [name for name in gradients.names if name.startswith("unused.")]
    used = [name for name in gradients.names if name not in unused]
    assert gradients.norms([used, unused]).count_nonzero(0).tolist() == [3, 0]
    assert torch.equal(gradients.weighted_sum(torch.ones(3))["unused.weight"], torch.zeros(2, 3))


def test_nobody_has_a_part_of_every_parameters_shape() -> None:
    model = CASES["words"].model()
    parts = Layers(model).of_no_record(dict(model.named_parameters()))
    assert list(parts) == [name for name, _ in model.named_parameters()]
    for name, part in parts.items():
        assert part.squared_norms().shape == (0,)
        nobody = torch.ones(0), torch.ones(0, dtype=torch.bool)
        assert torch.equal(part.weighted_sum(*nobody), torch.zeros_like(model.get_parameter(name)))


def test_what_cannot_be_private_is_refused_here() -> None:
    with pytest.raises(NotPrivate, match="BatchNorm1d"):
        Layers(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(InvalidValue, match="at least one parameter that requires grad"):
        Layers(nn.Linear(2, 2).requires_grad_(False))
