"""Steps of a given length along a gradient, whatever its size."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lehr.interfaces import ReleasedSum
from lehr.update.normalised import NormalisedSGD
from lehr.update.torch_optim import Update, Updater
from tests.update.released import released, small_model, weights

UPDATE = Update(optimizer="normalised-sgd", learning_rate=0.5)


@settings(max_examples=10)
@given(scale=st.floats(1e-3, 1e12), step_scale=st.floats(0.1, 3.0), seed=st.integers(0, 50))
def test_a_step_is_as_long_as_said_whatever_the_gradient(scale: float, step_scale: float, seed: int) -> None:
    model = small_model(torch.float64)
    before, given_sum = weights(model), released(model, seed, torch.float64)
    values = {name: scale * value for name, value in given_sum.values.items()}
    Updater(UPDATE, model).step(ReleasedSum(values=values), divisor=7.0, step=0, step_scale=step_scale)
    moved = torch.cat([(before[name] - after).flatten() for name, after in weights(model).items()])
    along = torch.cat([given_sum.values[name].flatten() for name in before])
    assert float(moved.norm()) == pytest.approx(0.5 * step_scale, rel=1e-9)
    torch.testing.assert_close(moved, 0.5 * step_scale * along / along.norm(), rtol=1e-9, atol=1e-12)


def test_the_norm_is_that_of_all_parameters_together() -> None:
    first, second = (nn.Parameter(torch.zeros(1)) for _ in range(2))
    first.grad, second.grad = torch.tensor([3.0]), torch.tensor([4.0])
    NormalisedSGD([first, second], lr=10.0).step()
    assert [first.item(), second.item()] == pytest.approx([-6.0, -8.0])


def test_a_gradient_of_zero_moves_nothing() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.zeros(3)
    NormalisedSGD([parameter], lr=10.0).step()
    assert parameter.tolist() == [1.0, 1.0, 1.0]


def test_parameters_without_a_gradient_stay() -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
    first.grad = torch.tensor([2.0])
    NormalisedSGD([first, second], lr=1.0).step()
    assert (first.item(), second.item()) == (-1.0, 1.0)


def test_it_has_no_state_and_is_said_in_words() -> None:
    model = small_model()
    updater = Updater(UPDATE, model)
    updater.step(released(model, 1), divisor=1.0, step=0)
    assert updater.tensors() == {}
    assert Update.from_json(UPDATE.to_json()) == UPDATE
