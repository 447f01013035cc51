from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import CASES, loss_fn


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square() / 2


@pytest.fixture
def line() -> nn.Linear:
    """``y = 2 x``, so that a record's gradient is ``(2 x - target) x``."""
    layer = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(layer.weight, 2.0)
    return layer


def test_a_gradient_that_is_known_by_hand(line: nn.Linear) -> None:
    inputs, targets = torch.tensor([[1.0], [3.0]]).double(), torch.tensor([1.0, 8.0]).double()
    gradients = OneByOneEngine(line, squares).gradients(inputs, targets)
    assert gradients.names == ("weight",)
    assert gradients.norms().tolist() == [1.0, 6.0]
    assert gradients.weighted_sum(torch.tensor([2.0, 0.5]))["weight"].item() == 2 * 1 - 0.5 * 6


def test_views_are_averaged_before_the_norm_is_taken(line: nn.Linear) -> None:
    inputs, targets = torch.tensor([[[1.0], [-1.0]], [[1.0], [3.0]]]).double(), torch.tensor([1.0, 8.0]).double()
    gradients = OneByOneEngine(line, squares, views=2).gradients(inputs, targets)
    assert gradients.norms().tolist() == [(1 + 3) / 2, (6 + 6) / 2]
    assert gradients.weighted_sum(torch.ones(2))["weight"].item() == 2 - 6


def test_a_clip_sees_every_coordinate_of_every_record() -> None:
    case = CASES["images"]
    model = case.model()
    inputs, targets = case.batch(3)
    gradients = OneByOneEngine(model, loss_fn).gradients(inputs, targets, torch.tensor([True, False, True]))
    found = gradients.clipped_sum(lambda grads: {name: grad.clamp(-0.01, 0.01) for name, grad in grads.items()})
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter)
        for index in (0, 2):
            loss = loss_fn(model(inputs[index : index + 1]), targets[index : index + 1]).sum()
            grad = torch.autograd.grad(loss, parameter, materialize_grads=True, allow_unused=True)[0]
            expected += grad.clamp(-0.01, 0.01)
        assert torch.equal(found[name], expected)


def test_a_record_that_does_not_count_adds_nothing_even_where_the_clip_makes_something_of_zero(line: nn.Linear) -> None:
    gradients = OneByOneEngine(line, squares).gradients(
        torch.ones(2, 1).double(), torch.ones(2), torch.tensor([True, False])
    )
    assert gradients.clipped_sum(lambda grads: {"weight": grads["weight"] + 1})["weight"].item() == 1 + 1


def test_a_loss_that_is_already_reduced_is_refused(line: nn.Linear) -> None:
    engine = OneByOneEngine(line, lambda outputs, targets: squares(outputs, targets).mean())
    with pytest.raises(InvalidValue, match="loss_fn must be a function with one loss per record"):
        engine.gradients(torch.ones(2, 1).double(), torch.ones(2))


def test_a_layer_that_begins_to_mix_records_later_is_refused_then() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    engine = OneByOneEngine(model, squares)
    model.train()
    with pytest.raises(NotPrivate, match="BatchNorm1d"):
        engine.gradients(torch.ones(2, 2), torch.ones(2))


def test_it_also_works_where_gradients_are_switched_off(line: nn.Linear) -> None:
    with torch.no_grad():
        assert OneByOneEngine(line, squares).gradients(torch.ones(1, 1).double(), torch.zeros(1)).norms().item() == 2


def test_it_also_works_in_inference_mode_on_tensors_that_were_made_there(line: nn.Linear) -> None:
    with torch.inference_mode():
        found = OneByOneEngine(line, squares).gradients(torch.ones(1, 1).double(), torch.zeros(1))
        assert found.norms().item() == 2


def test_sums_are_not_rounded_where_the_caller_has_autocast_on(line: nn.Linear) -> None:
    gradients = OneByOneEngine(line, squares).gradients(torch.ones(1, 1).double(), torch.zeros(1))
    weights = torch.full((1,), 1 + 2**-12)
    expected = gradients.weighted_sum(weights)["weight"]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gradients.weighted_sum(weights)["weight"], expected)


def test_what_a_forward_pass_writes_into_a_buffer_reaches_neither_the_model_nor_the_next_record() -> None:
    class Remembers(nn.Linear):
        total: Tensor

        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            self.total += input.detach().sum()
            return super().forward(input) * self.total

    model = Remembers(1, 1, bias=False)
    model.register_buffer("total", torch.ones(()))
    nn.init.ones_(model.weight)
    found = OneByOneEngine(model, lambda outputs, targets: outputs[:, 0]).gradients(torch.ones(3, 1), torch.ones(3))
    assert found.norms().tolist() == [2, 2, 2]
    assert model.total == 1
