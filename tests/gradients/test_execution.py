from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.utils.parametrizations import weight_norm

from lehr.gradients.execution import (
    CudaGraphReplay,
    FunctionalModel,
    compile_step,
    random_numbers_apart,
    rng_states,
    unfuse,
)
from tests.gradients.oracle import assert_agrees, batch
from tests.gradients.small_models import CASES, Model, untouched

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def under_two_names() -> nn.Sequential:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer).double()


def drawn_like(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", [*CASES, "under two names"])
def test_a_model_is_run_with_the_values_and_left_as_it_was(name: str) -> None:
    if name in CASES:
        model, other, (inputs, _) = CASES[name].model(), CASES[name].model(), CASES[name].batch(2)
    else:
        model, other, inputs = under_two_names(), under_two_names(), torch.randn(2, 3, dtype=torch.float64)
    before, values = untouched(model), drawn_like(model)
    other.load_state_dict(values, strict=False)
    torch.testing.assert_close(FunctionalModel(model)(values, (inputs,), {}), other(inputs))
    with pytest.raises(ZeroDivisionError):
        FunctionalModel(model, lambda: 1 / 0)(values, (), {})
    assert untouched(model) == before  # with the identity of every parameter


def test_gradients_of_a_shared_weight_come_from_all_its_uses() -> None:
    model = under_two_names()
    inputs = torch.randn(2, 3, dtype=torch.float64)
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = grad(lambda values: FunctionalModel(model)(values, (inputs,), {}).sum())(values)
    torch.autograd.backward(model(inputs).sum())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


def test_what_is_not_given_is_the_models_own_and_other_names_change_nothing() -> None:
    model, inputs = nn.Linear(3, 3), torch.ones(1, 3)
    assert torch.equal(FunctionalModel(model)({"weight": torch.zeros(3, 3)}, (inputs,), {})[0], model.bias)
    assert torch.equal(FunctionalModel(model)({"other": torch.zeros(1)}, (), {"input": inputs}), model(inputs))


def test_random_numbers_drawn_apart_leave_no_trace() -> None:
    before = rng_states(torch.device("cpu"))
    with random_numbers_apart(torch.device("cpu")):
        for draw in (torch.rand, np.random.rand, lambda _: random.random()):
            draw(3)
            assert rng_states(torch.device("cpu")) != before
    assert rng_states(torch.device("cpu")) == before


compile_with_backend = torch.compile


def compile_without_backend(step: Callable[..., Tensor], *, fullgraph: bool, dynamic: bool) -> Callable[..., Tensor]:
    """The graph is captured and guarded as always, and then run as it is: generating code takes many seconds."""
    return compile_with_backend(step, fullgraph=fullgraph, dynamic=dynamic, backend="eager")


def test_every_step_may_be_compiled_anew_and_a_broken_graph_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch stops compiling a function after a few times, and the steps of all engines are one function to it."""

    def step_of(addend: int) -> Callable[[Tensor], Tensor]:
        def step(values: Tensor) -> Tensor:
            return values + addend

        return step

    def broken(values: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return values

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compile_without_backend)
    steps = [compile_step(step_of(addend)) for addend in range(torch._dynamo.config.recompile_limit + 3)]
    assert [step(torch.zeros(1)).item() for step in steps] == list(range(len(steps)))
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compile_step(broken)(torch.zeros(1))


def called_layers(model: nn.Module, inputs: Tensor) -> set[str]:
    called = set()
    for name, layer in model.named_modules():
        forward = layer.forward

        def noted(*args: object, name: str = name, forward: Any = forward, **kwargs: object) -> object:
            called.add(name)
            return forward(*args, **kwargs)

        layer.forward = noted
    with torch.no_grad():
        model(inputs)
    return called


def test_an_encoder_in_eval_mode_calls_its_layers() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval()
    inputs, _ = batch(3, 4, 6, dtype=torch.float32)
    assert "linear1" not in called_layers(copy.deepcopy(layer), inputs)  # otherwise there is nothing to unfuse
    assert {"self_attn", "linear1", "linear2", "norm1"} <= called_layers(unfuse(copy.deepcopy(layer)), inputs)


def test_an_encoder_in_eval_mode_agrees_with_a_loop() -> None:
    def run(model: Any, inputs: Tensor, padding: Tensor) -> Any:
        return model.encoder(inputs, src_key_padding_mask=padding).masked_fill(padding.unsqueeze(-1), 0)

    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    inputs, targets_B = batch(3, 4, 6)
    padding = torch.tensor([[False, False, True, True], [False] * 4, [False, False, False, True]])
    assert_agrees(Model(run, encoder=nn.TransformerEncoder(layer, 2)).double().eval(), (inputs, padding), targets_B)


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("records", [0, 3])
def test_weight_norm_computes_what_torch_does_and_agrees_with_a_loop(dim: Any, records: int) -> None:
    layer = weight_norm(nn.Conv1d(3, 4, 2), dim=dim)
    torch.testing.assert_close(unfuse(copy.deepcopy(layer)).weight, layer.weight)
    assert_agrees(nn.Sequential(layer, nn.Flatten(), weight_norm(nn.Linear(16, 2))).double(), *batch(records, 3, 5))


class Counted:
    """A step of gradient descent that says how often Python ran it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, held: dict[str, Tensor], arguments: tuple[Tensor, float]) -> Tensor:
        self.calls += 1
        values, rate = arguments
        held["weight"].sub_(values, alpha=rate)
        return held["weight"] * 2


def test_on_a_cpu_the_function_is_simply_run() -> None:
    step = Counted()
    held = {"weight": torch.zeros(2)}
    for expected in (-2.0, -4.0):
        assert CudaGraphReplay(step)(held, (torch.ones(2), 1.0)).tolist() == [expected] * 2
    assert step.calls == 2


@on_a_gpu
def test_on_a_gpu_the_function_is_recorded_once_and_then_replayed() -> None:
    step = Counted()
    replayed = CudaGraphReplay(step)
    held = {"weight": torch.zeros(2, device="cuda")}
    found = [replayed(held, (torch.full((2,), value, device="cuda"), 1.0)).tolist() for value in (1.0, 2.0, 3.0)]
    assert found == [[-2, -2], [-6, -6], [-12, -12]]  # recording left no trace in the weights
    calls = step.calls
    replayed(held, (torch.ones(2, device="cuda"), 1.0))
    assert step.calls == calls


@on_a_gpu
@pytest.mark.parametrize(
    "arguments", [(torch.ones(3), 1.0), (torch.ones(2, dtype=torch.float64), 1.0), (torch.ones(2), 0.5)]
)
def test_another_shape_type_number_or_weight_is_recorded_anew(arguments: tuple[Tensor, float]) -> None:
    replayed = CudaGraphReplay(Counted())
    first = {"weight": torch.zeros(2, device="cuda")}
    replayed(first, (torch.ones(2, device="cuda"), 1.0))
    values, rate = arguments
    held = {"weight": torch.zeros_like(values, device="cuda")}
    assert torch.equal(replayed(held, (values.cuda(), rate)).cpu(), -2 * rate * values)
    assert first["weight"].tolist() == [-1, -1]


@on_a_gpu
def test_replays_draw_on_from_a_generator_as_plain_runs_would() -> None:
    """Neither may noise be repeated, nor may warming up use any of it."""

    def drawn(generator: torch.Generator) -> Any:
        def step(held: Tensor, values: Tensor) -> Tensor:
            return values + torch.randn(4, generator=generator, device="cuda") + 0 * held

        return step

    one, other = (torch.Generator("cuda").manual_seed(7) for _ in range(2))
    replayed, plain = CudaGraphReplay(drawn(one), generators=[one]), drawn(other)
    held, values = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    found = [replayed(held, values).tolist() for _ in range(3)]
    assert found == [plain(held, values).tolist() for _ in range(3)]
    assert found[0] != found[1] != found[2]
