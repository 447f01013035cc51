"""The table of optimizers: each one builds with every argument it names, and refuses what it should."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.update.optimizers import OPTIMIZERS, checked, negative, switch

ALLOWED: dict[str, Any] = {
    "betas": (0.8, 0.9),
    "eps": 1e-6,
    "d": 2.0,
    "beta2_decay": -0.7,
    "nesterov": False,
    "amsgrad": True,
    "centered": True,
    "decoupled_weight_decay": True,
}


def allowed(optimizer: str, argument: str) -> Any:
    return (None, 1e-3) if (optimizer, argument) == ("adafactor", "eps") else ALLOWED.get(argument, 0.5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_argument_reaches_the_optimizer(name: str) -> None:
    arguments = {argument: allowed(name, argument) for argument in OPTIMIZERS[name].arguments}
    built = OPTIMIZERS[name].over([nn.Parameter(torch.zeros(2, 2))], lr=0.25, **checked(name, arguments))
    assert {argument: built.defaults[argument] for argument in arguments} == arguments
    assert built.defaults["lr"] == 0.25


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_that_is_no_number_passes(name: str) -> None:
    for argument in OPTIMIZERS[name].arguments:
        for wrong in (math.nan, "0.5", math.inf, (0.5, math.nan), [0.1]):
            with pytest.raises(InvalidValue, match=argument):
                checked(name, {argument: wrong})


def test_unknown_optimizers_and_arguments_are_named() -> None:
    with pytest.raises(InvalidValue, match="lbfgs"):
        checked("lbfgs", {})
    with pytest.raises(InvalidValue, match="momentun"):
        checked("sgd", {"momentun": 0.9})


@pytest.mark.parametrize("others", [{}, {"momentum": 0.9, "dampening": 0.5}])
def test_nesterov_needs_momentum_and_no_dampening(others: dict[str, float]) -> None:
    with pytest.raises(InvalidValue, match="nesterov"):
        checked("sgd", {"nesterov": True, **others})


def test_the_ends_of_the_ranges() -> None:
    assert checked("sgd", {"momentum": 0}) == {"momentum": 0.0}
    with pytest.raises(InvalidValue):
        checked("sgd", {"momentum": 1.0})
    with pytest.raises(InvalidValue):
        negative(beta2_decay=0.0)
    with pytest.raises(InvalidValue):
        switch(nesterov=1)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
SHAPES = [(1,), (7,), (16,), (100,), (33, 17), (4, 3, 3, 3)]  # with and without a rest beside torch's wide registers


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_coordinate_moves_as_in_float64(name: str, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [(1 + torch.rand(shape, generator=generator, dtype=torch.float64)).to(dtype) for shape in SHAPES]
    grads = [[(0.5 + torch.rand(shape, generator=generator)).to(dtype) for shape in SHAPES] for _ in range(3)]
    arguments: dict[str, Any] = {"momentum": 0.5} if "momentum" in OPTIMIZERS[name].arguments else {}
    arguments["lr"] = {"normalised-sgd": 5.0, "adadelta": 100.0, "adafactor": 1.0, "radam": 0.5}.get(name, 0.25)
    weights = [nn.Parameter(value.to(device, copy=True)) for value in start]
    expected = [nn.Parameter(value.to(torch.float64, copy=True)) for value in start]
    optimizer = OPTIMIZERS[name].over(weights, **arguments)
    reference = OPTIMIZERS[name].build(expected, **arguments)
    for of_step in grads:
        for weight, same, grad in zip(weights, expected, of_step, strict=True):
            weight.grad, same.grad = grad.to(device), grad.double()
        optimizer.step()
        reference.step()
    for weight, same, value in zip(weights, expected, start, strict=True):
        moved = (same - value.double()).abs()
        off = (weight.detach().cpu().double() - same).abs()
        assert bool((moved > 0.1).all())
        assert bool((off <= 0.05 * moved + 4 * torch.finfo(dtype).eps).all())
