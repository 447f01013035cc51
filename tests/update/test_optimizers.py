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
