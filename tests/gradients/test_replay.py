from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lehr.gradients.replay import Replayed

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


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
    replayed = Replayed(step)
    held = {"weight": torch.zeros(2)}
    for expected in (-2.0, -4.0):
        assert replayed(held, (torch.ones(2), 1.0)).tolist() == [expected] * 2
    assert step.calls == 2


@on_a_gpu
def test_on_a_gpu_the_function_is_recorded_once_and_then_replayed() -> None:
    step = Counted()
    replayed = Replayed(step)
    held = {"weight": torch.zeros(2, device="cuda")}
    found = [replayed(held, (torch.full((2,), value, device="cuda"), 1.0)).tolist() for value in (1.0, 2.0, 3.0)]
    assert found == [[-2, -2], [-6, -6], [-12, -12]]
    calls = step.calls
    replayed(held, (torch.ones(2, device="cuda"), 1.0))
    assert step.calls == calls


@on_a_gpu
def test_recording_leaves_no_trace_in_the_weights() -> None:
    held = {"weight": torch.zeros(2, device="cuda")}
    Replayed(Counted())(held, (torch.ones(2, device="cuda"), 1.0))
    assert held["weight"].tolist() == [-1, -1]


@on_a_gpu
@pytest.mark.parametrize(
    "arguments", [(torch.ones(3), 1.0), (torch.ones(2, dtype=torch.float64), 1.0), (torch.ones(2), 0.5)]
)
def test_another_shape_or_type_or_number_is_recorded_anew(arguments: tuple[Tensor, float]) -> None:
    replayed = Replayed(Counted())
    replayed({"weight": torch.zeros(2, device="cuda")}, (torch.ones(2, device="cuda"), 1.0))
    values, rate = arguments
    held = {"weight": torch.zeros_like(values, device="cuda")}
    assert torch.equal(replayed(held, (values.cuda(), rate)).cpu(), -2 * rate * values)


@on_a_gpu
def test_weights_that_were_replaced_are_the_ones_that_are_used() -> None:
    replayed = Replayed(Counted())
    values = torch.ones(2, device="cuda")
    first, second = ({"weight": torch.full((2,), start, device="cuda")} for start in (0.0, 10.0))
    replayed(first, (values, 1.0))
    assert replayed(second, (values, 1.0)).tolist() == [18, 18]
    assert first["weight"].tolist() == [-1, -1]


@on_a_gpu
def test_replays_draw_on_from_a_generator_as_plain_runs_would() -> None:
    """Neither may noise be repeated, nor may warming up use any of it."""

    def drawn(generator: torch.Generator) -> Any:
        def step(held: Tensor, values: Tensor) -> Tensor:
            return values + torch.randn(4, generator=generator, device="cuda") + 0 * held

        return step

    one, other = (torch.Generator("cuda").manual_seed(7) for _ in range(2))
    replayed, plain = Replayed(drawn(one), generators=[one]), drawn(other)
    held, values = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    found = [replayed(held, values).tolist() for _ in range(3)]
    assert found == [plain(held, values).tolist() for _ in range(3)]
    assert found[0] != found[1] != found[2]
