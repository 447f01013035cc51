"""Averages against a plain loop in float64, resumed exactly, in types that are wide enough."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.optim.averaging import Averaging, ExponentialAverage, NoAverage, TailAverage, from_json
from tests.optim.released import same, small_model

RULES: list[Averaging] = [NoAverage(), ExponentialAverage(decay=0.6), TailAverage(first_step=3)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)


def moved(model: nn.Module, step: int) -> None:
    """Weights as another step would leave them."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype))


def trajectory(model: nn.Module, steps: int) -> list[Tensor]:
    """The first parameter before the first step and after each of them."""
    seen = [next(model.parameters()).detach().double().clone()]
    for step in range(steps):
        moved(model, step)
        seen.append(next(model.parameters()).detach().double().clone())
    return seen


def averaged(rule: Averaging, steps: int) -> Tensor:
    model = small_model()
    state = rule.start(model)
    for step in range(steps):
        moved(model, step)
        state = rule.learn(state, model)
    return rule.weights(state, model)["0.weight"].double()


def test_an_exponential_average_keeps_as_much_as_the_warm_up_says() -> None:
    seen = trajectory(small_model(), steps=30)
    expected = seen[0]
    for step, weight in enumerate(seen[1:]):
        kept = min(0.6, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * weight
    torch.testing.assert_close(averaged(ExponentialAverage(decay=0.6), steps=30), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("steps", [2, 4, 12])
def test_a_tail_average_is_the_mean_from_its_first_step_on(steps: int) -> None:
    seen = trajectory(small_model(), steps=steps)[1:]
    expected = torch.stack(seen[3:]).mean(dim=0) if steps > 3 else seen[-1]
    torch.testing.assert_close(averaged(TailAverage(first_step=3), steps=steps), expected, rtol=1e-5, atol=1e-5)


def test_without_averaging_the_weights_are_the_last() -> None:
    assert torch.equal(averaged(NoAverage(), steps=4), trajectory(small_model(), steps=4)[-1])


@every_rule
def test_a_resumed_average_is_the_same_bit_for_bit(rule: Averaging) -> None:
    model = small_model()
    state = rule.start(model)
    for step in range(5):
        moved(model, step)
        state = rule.learn(state, model)
    file = {name: value.clone() for name, value in state.tensors().items()} | {"model/0.weight": torch.zeros(1)}
    resumed = rule.start(small_model()).loaded(file)
    for step in range(5, 9):
        moved(model, step)
        state, resumed = rule.learn(state, model), rule.learn(resumed, model)
    assert same(rule.weights(state, model), rule.weights(resumed, model))
    assert resumed.learnt == state.learnt


@every_rule
def test_weights_can_be_loaded_and_buffers_are_not_averaged(rule: Averaging) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    state = rule.start(model)
    next(model.buffers()).fill_(7.0)
    fresh = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    fresh.load_state_dict(rule.weights(rule.learn(state, model), model))
    assert same(dict(fresh.state_dict()), dict(model.state_dict()))


def test_small_moves_of_narrow_weights_are_not_lost() -> None:
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    rule = ExponentialAverage(decay=0.999)
    state = rule.start(model)
    for name, average in state.averages.items():
        assert average.dtype == torch.float32, name
    state = replace(state, learnt=10**6)
    with torch.no_grad():
        model.weight.fill_(1.0078125)
    for _ in range(3000):
        state = rule.learn(state, model)
    assert rule.weights(state, model)["weight"].item() == 1.0078125


def test_tied_weights_are_averaged_once_and_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    rule = TailAverage(first_step=0)
    state = rule.learn(rule.start(model), model)
    found = rule.weights(state, model)
    assert torch.equal(found["0.weight"], found["1.weight"])
    assert torch.equal(found["0.weight"], next(model.parameters()))


def test_a_state_of_another_model_is_refused() -> None:
    rule = TailAverage(first_step=0)
    with pytest.raises(InvalidValue, match="average"):
        rule.start(small_model()).loaded(rule.start(nn.Linear(1, 1)).tensors())


@every_rule
def test_the_json_form_reads_back_as_the_same_rule(rule: Averaging) -> None:
    assert from_json(rule.to_json()) == rule


@pytest.mark.parametrize(
    "shape",
    [
        None,
        {"kind": "median"},
        {"kind": "none", "decay": 0.5},
        {"kind": "exponential", "decay": math.nan},
        {"kind": "exponential", "decay": 1.0},
        {"kind": "tail", "first_step": -1},
        {"kind": "tail"},
    ],
)
def test_a_bad_json_form_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        from_json(shape)
