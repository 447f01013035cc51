"""Optimizers by name against torch's own, their state in checkpoints, and released sums alone reach the weights."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn, optim

from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.optim.optimizers import (
    OPTIMIZERS,
    BuildsOptimizer,
    NormalisedSGD,
    Update,
    Updater,
    adam,
    adamw,
    check_arguments,
    custom,
    default_arguments,
    sgd,
)
from lehr.schedules import Cosine, LinearWarmup
from tests.optim.released import released, same, small_model, weights


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_arguments_reach_the_optimizer_and_other_values_are_refused(name: str) -> None:
    defaults = default_arguments(name)
    update = Update(optimizer=name, learning_rate=0.25, arguments=defaults)
    built = update.build([nn.Parameter(torch.zeros(2, 2))])
    assert {argument: built.defaults[argument] for argument in defaults} == defaults
    assert built.defaults["lr"] == 0.25
    for argument, wrong in itertools.product(defaults, (math.nan, "0.5", math.inf, (0.5, math.nan), [0.1])):
        with pytest.raises(InvalidValue, match=argument):
            check_arguments(name, {argument: wrong})


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("lbfgs", {}),
        ("sgd", {"momentun": 0.9}),
        ("sgd", {"maximize": True}),
        ("sgd", {"momentum": 1.0}),
        ("sgd", {"weight_decay": -0.1}),
        ("sgd", {"nesterov": 1}),
        ("sgd", {"nesterov": True}),
        ("sgd", {"nesterov": True, "momentum": 0.9, "dampening": 0.5}),
        ("adam", {"betas": (0.9, 1.0)}),
        ("adafactor", {"beta2_decay": 0.5}),
    ],
)
def test_unknown_and_impossible_arguments_are_refused(name: str, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        check_arguments(name, wrong)
    assert check_arguments("sgd", {"momentum": 0}) == {"momentum": 0.0}


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
SHAPES = [(1,), (7,), (16,), (100,), (33, 17), (4, 3, 3, 3)]  # with and without a rest beside torch's wide registers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_coordinate_moves_as_in_float64(name: str, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [(1 + torch.rand(shape, generator=generator, dtype=torch.float64)).to(dtype) for shape in SHAPES]
    grads = [[(0.5 + torch.rand(shape, generator=generator)).to(dtype) for shape in SHAPES] for _ in range(3)]
    arguments = {"momentum": 0.5} if "momentum" in default_arguments(name) else {}
    rate = {"normalised-sgd": 5.0, "adadelta": 100.0, "adafactor": 1.0, "radam": 0.5}.get(name, 0.25)
    weights = [nn.Parameter(value.to(device, copy=True)) for value in start]
    expected = [nn.Parameter(value.to(torch.float64, copy=True)) for value in start]
    optimizer = Update(optimizer=name, learning_rate=rate, arguments=arguments).build(weights)
    reference = OPTIMIZERS[name](expected, lr=rate, **arguments)
    for of_step in grads:
        for weight, wide, grad in zip(weights, expected, of_step, strict=True):
            weight.grad, wide.grad = grad.to(device), grad.double()
        optimizer.step()
        reference.step()
    for weight, wide, value in zip(weights, expected, start, strict=True):
        moved = (wide - value.double()).abs()
        off = (weight.detach().cpu().double() - wide).abs()
        assert bool((moved > 0.1).all())
        assert bool((off <= 0.05 * moved + 4 * torch.finfo(dtype).eps).all())


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


def test_the_norm_is_that_of_all_gradients_and_zero_moves_nothing() -> None:
    first, second, frozen = (nn.Parameter(torch.ones(1)) for _ in range(3))
    for grads, expected in (((3.0, 4.0), [-5.0, -7.0, 1.0]), ((0.0, 0.0), [-5.0, -7.0, 1.0])):
        first.grad, second.grad = (torch.tensor([grad]) for grad in grads)
        NormalisedSGD([first, second, frozen], lr=10.0).step()
        assert [first.item(), second.item(), frozen.item()] == pytest.approx(expected)


class Counting(optim.Optimizer):
    """An optimizer that keeps plain numbers: one for each parameter, and one beside its settings."""

    def __init__(self, parameters: list[nn.Parameter], lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "seen": 0, "name": "counting"})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["seen"] += 1
            for parameter in group["params"]:
                self.state[parameter]["count"] = self.state[parameter].get("count", 0) + 1


def counted(steps: int) -> tuple[nn.Module, Updater]:
    model = nn.Linear(2, 1)
    updater = Updater(custom(Counting), model)
    for step in range(steps):
        updater.step(released(model, step), divisor=1.0, step=step)
    return model, updater


def test_numbers_beside_the_tensors_are_read_back() -> None:
    (_, old), (_, new) = counted(2), counted(5)
    numbers = old.scalars()
    settings = {"optimizer/settings/0/lr": 0.1, "optimizer/settings/0/seen": 2}
    assert numbers == {"optimizer/weight/count": 2, "optimizer/bias/count": 2, **settings}
    new.load_tensors(old.tensors(), numbers)
    assert new.scalars() == numbers


def test_a_state_that_no_file_can_hold_is_named() -> None:
    model, updater = counted(1)
    updater._optimizer.state[model.bias]["history"] = [1, 2]  # type: ignore[index]
    with pytest.raises(InvalidValue, match="bias/history"):
        updater.scalars()


@pytest.mark.parametrize("name", ["other.weight/momentum_buffer", "momentum_buffer", "settings/0/surplus"])
def test_values_of_another_model_are_refused(name: str) -> None:
    _, updater = counted(1)
    with pytest.raises(InvalidValue, match=name):
        updater.load_tensors({f"optimizer/{name}": torch.zeros(2)})


def test_loaded_tensors_are_copied_and_loading_nothing_clears_the_state() -> None:
    model = small_model()
    updater = Updater(adam(0.1), model)
    run(updater, model, range(2))
    file = {name: value.clone() for name, value in updater.tensors().items()}
    before = {name: value.clone() for name, value in file.items()}
    updater.load_tensors(file, updater.scalars())
    run(updater, model, range(2, 3))
    assert same(file, before)
    updater.load_tensors({})
    assert updater.tensors() == {}


def test_a_snapshot_restores_settings_and_removes_later_state() -> None:
    model, updater = counted(0)
    before = updater.snapshot()
    updater.step(released(model, 0), divisor=1.0, step=0)
    updater.restore(before)
    assert updater.scalars() == {"optimizer/settings/0/lr": 0.1, "optimizer/settings/0/seen": 0}


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


def test_a_narrow_weight_takes_a_wider_sum_and_gradients_are_cleared() -> None:
    model = small_model(torch.bfloat16)
    before = weights(model)
    Updater(sgd(0.5, momentum=0.9), model).step(released(model, seed=1, dtype=torch.float64), divisor=2.0, step=0)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert all(parameter.grad is None for parameter in model.parameters())
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


def test_optimizers_that_cannot_take_released_sums_are_refused() -> None:
    with pytest.raises(InvalidValue, match="uncharged"):
        custom(optim.LBFGS)
    with pytest.raises(InvalidValue, match="factory"):
        custom(lambda parameters: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidValue, match="model"):
        Updater(sgd(0.5), nn.ReLU())
