"""The updater: what torch's own loop does, rolled back and resumed bit for bit, for every optimizer in the table."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
from torch import nn, optim

from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.schedules import Cosine, LinearWarmup
from lehr.update.optimizers import OPTIMIZERS
from lehr.update.torch_optim import BuildsOptimizer, CustomUpdate, Update, Updater, adam, adamw, custom, sgd
from tests.update.released import released, same, small_model, weights

MORE = [
    sgd(0.5, momentum=0.9),
    sgd(0.5, momentum=0.9, nesterov=True, weight_decay=0.1, schedule=Cosine(total_steps=20)),
    Update(optimizer="adam", learning_rate=0.1, arguments={"amsgrad": True}),
    Update(optimizer="rmsprop", learning_rate=0.1, arguments={"momentum": 0.5, "centered": True}),
]


def described(update: BuildsOptimizer) -> str:
    shape = update.to_json()
    return " ".join([str(shape.get("optimizer", "custom")), *map(str, shape.get("arguments", ()))])  # type: ignore[call-overload]


EVERY: list[BuildsOptimizer] = [
    *(Update(optimizer=name, learning_rate=0.1) for name in OPTIMIZERS),
    *MORE,
    custom(lambda parameters: optim.ASGD(parameters, lr=0.1)),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
every_update = pytest.mark.parametrize("update", EVERY, ids=described)


def run(updater: Updater, model: nn.Module, steps: range) -> None:
    for step in steps:
        updater.step(released(model, seed=step), divisor=8.0, step=step)


@every_update
def test_steps_are_those_of_torch_on_the_mean(update: BuildsOptimizer) -> None:
    model, plain = small_model(torch.float64), small_model(torch.float64)
    optimizer = update.build(list(plain.parameters()))
    rate, updater = optimizer.param_groups[0]["lr"], Updater(update, model)
    for step in range(4):
        given = released(model, seed=step, dtype=torch.float64)
        updater.step(given, divisor=8.0, step=step)
        optimizer.param_groups[0]["lr"] = rate * update.schedule.factor(step)
        for name, parameter in plain.named_parameters():
            parameter.grad = given.values[name] / 8
        optimizer.step()
    assert same(weights(model), weights(plain))


@every_update
@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_is_the_same_bit_for_bit(update: BuildsOptimizer, device: str) -> None:
    model = small_model().to(device)
    updater = Updater(update, model)
    run(updater, model, range(3))
    tensors = {name: value.detach().cpu().clone() for name, value in updater.tensors().items()}
    scalars = json.loads(json.dumps(updater.scalars()))
    resumed_model = copy.deepcopy(model)
    run(updater, model, range(3, 6))

    resumed = Updater(update, resumed_model)
    resumed.load_tensors({**tensors, "model/weight": torch.zeros(1)}, scalars)
    run(resumed, resumed_model, range(3, 6))
    assert same(weights(resumed_model), weights(model))
    assert same(resumed.tensors(), updater.tensors())


@every_update
@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_rejected_candidate_leaves_nothing_behind(update: BuildsOptimizer, steps_before: int) -> None:
    model, never = small_model(), small_model()
    updater, never_tried = Updater(update, model), Updater(update, never)
    run(updater, model, range(steps_before))
    run(never_tried, never, range(steps_before))
    snapshot = updater.snapshot()
    for _ in range(2):
        updater.step(released(model, seed=99), divisor=8.0, step=steps_before)
        updater.restore(snapshot)
    assert same(weights(model), weights(never))
    run(updater, model, range(steps_before, steps_before + 3))
    run(never_tried, never, range(steps_before, steps_before + 3))
    assert same(weights(model), weights(never))
    assert same(updater.tensors(), never_tried.tensors())


def test_a_resume_without_the_state_would_be_noticed() -> None:
    model = small_model()
    updater = Updater(sgd(0.5, momentum=0.9), model)
    run(updater, model, range(3))
    forgetful = copy.deepcopy(model)
    run(updater, model, range(3, 6))
    run(Updater(sgd(0.5, momentum=0.9), forgetful), forgetful, range(3, 6))
    assert not same(weights(forgetful), weights(model))


def test_state_has_the_names_of_the_parameters_and_holds_the_counters() -> None:
    model = nn.Linear(2, 1)
    updater = Updater(adam(0.1), model)
    run(updater, model, range(2))
    names = {f"optimizer/{name}/{key}" for name in ("weight", "bias") for key in ("step", "exp_avg", "exp_avg_sq")}
    assert set(updater.tensors()) == names
    assert updater.tensors()["optimizer/bias/step"].item() == 2


def test_gradients_are_cleared_after_the_step() -> None:
    model = small_model()
    Updater(sgd(0.5), model).step(released(model, seed=1), divisor=1.0, step=0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_narrow_weight_takes_a_sum_of_a_wider_type() -> None:
    model = small_model(torch.bfloat16)
    before = weights(model)
    Updater(sgd(0.5, momentum=0.9), model).step(released(model, seed=1, dtype=torch.float64), divisor=2.0, step=0)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert not same(weights(model), before)


def test_the_quotient_is_taken_before_the_type_is_narrowed() -> None:
    model = nn.Linear(1, 1, bias=False).to(torch.float16)
    with torch.no_grad():
        model.weight.zero_()
    huge = ReleasedSum(values={"weight": torch.tensor([[2.0**20]])})
    Updater(sgd(1.0), model).step(huge, divisor=2.0**20, step=0)
    assert model.weight.item() == -1.0


def test_frozen_parameters_are_not_asked_for_and_do_not_move() -> None:
    model = small_model()
    frozen = next(iter(model.parameters()))
    frozen.requires_grad_(False)
    before = frozen.clone()
    run(Updater(sgd(0.5, weight_decay=0.1), model), model, range(2))
    assert torch.equal(frozen, before)


def test_the_learning_rate_follows_the_schedule() -> None:
    updater = Updater(sgd(0.5, schedule=LinearWarmup(steps=2)), small_model())
    assert [updater.learning_rate(step) for step in range(3)] == [0.25, 0.5, 0.5]


def test_only_a_released_sum_reaches_the_weights() -> None:
    model = small_model()
    updater = Updater(sgd(0.5), model)
    values = released(model, seed=1).values
    for private in (PrivateSum(values=values, sensitivity=1.0), values):
        with pytest.raises(InvalidValue, match="only a sum with its noise"):
            updater.step(private, divisor=1.0, step=0)  # type: ignore[arg-type]


def test_a_sum_for_other_parameters_is_refused_by_name() -> None:
    model = small_model()
    values = dict(released(model, seed=1).values)
    values["3.beta"] = values.pop("3.bias")
    with pytest.raises(InvalidValue, match=r"3\.beta"):
        Updater(sgd(0.5), model).step(ReleasedSum(values=values), divisor=1.0, step=0)


@pytest.mark.parametrize("divisor", [0, -1.0, math.nan, math.inf])
def test_a_divisor_that_divides_nothing_is_refused_before_the_weights_move(divisor: float) -> None:
    model = small_model()
    before = weights(model)
    with pytest.raises(InvalidValue, match="divisor"):
        Updater(sgd(0.5), model).step(released(model, seed=1), divisor=divisor, step=0)
    assert same(weights(model), before)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(InvalidValue, match="require a gradient"):
        Updater(sgd(0.5), nn.ReLU())


@pytest.mark.parametrize(
    "update", [*MORE, adam(), adamw(weight_decay=0.5), sgd(1)], ids=lambda update: repr(update)[:60]
)
def test_the_json_form_reads_back_as_the_same_update(update: Update) -> None:
    shape = json.loads(json.dumps(update.to_json()))
    assert Update.from_json(shape) == update
    assert hash(Update.from_json(shape)) == hash(update)
    assert copy.deepcopy(update) == update


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "lbfgs"},
        {"optimizer": None},
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"arguments": None},
        {"arguments": {"momentun": 0.9}},
        {"schedule": {"kind": "none"}},
        {"surplus": 1},
    ],
)
def test_a_bad_json_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        Update.from_json(sgd(0.5).to_json() | change)


def test_arguments_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(TypeError):
        sgd(0.5).arguments["momentum"] = 2.0  # type: ignore[index]


def test_a_custom_optimizer_is_described_by_its_class_and_defaults() -> None:
    shape = custom(lambda parameters: optim.SGD(parameters, lr=0.25, momentum=0.5)).to_json()
    assert shape["custom"] == "torch.optim.sgd.SGD"
    assert isinstance(shape["defaults"], dict)
    assert (shape["defaults"]["lr"], shape["defaults"]["momentum"]) == (0.25, 0.5)
    json.dumps(shape)


def test_an_optimizer_that_asks_for_the_loss_again_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidValue, match="look at the records again"):
        custom(lambda parameters: optim.LBFGS(parameters))


def test_a_factory_must_return_an_optimizer() -> None:
    with pytest.raises(InvalidValue, match="torch optimizer"):
        CustomUpdate(factory=lambda parameters: 3)  # type: ignore[arg-type,return-value]
