"""The norm over neighbouring channels."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.gradients.materialised import MaterialisedEngine
from lehr.networks.response_norm import ResponseNorm
from tests.gradients.oracle import assert_agrees, assert_close, batch, loop, squared_distance


@pytest.mark.parametrize("reach", [0, 1, 4])
@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 12, 3, 4), (2, 7, 2, 3, 2)], ids=str)
def test_it_is_the_one_of_torch(reach: int, shape: tuple[int, ...]) -> None:
    size = 2 * reach + 1
    values = (10 * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    others = values.detach().clone().requires_grad_()
    found = ResponseNorm(reach=reach, strength=0.02, exponent=0.75)(values)
    expected = nn.LocalResponseNorm(size, alpha=0.02 * size, beta=0.75, k=1.0)(others)
    torch.testing.assert_close(found, expected)
    towards = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad((found * towards).sum(), values), torch.autograd.grad((expected * towards).sum(), others)
    )


def test_no_record_and_no_pixel_changes_another() -> None:
    layer = ResponseNorm(reach=2, strength=0.5, exponent=0.75)
    values = torch.randn(2, 6, 3, 3)
    before = layer(values)
    values[1, :, 1, 1] *= 100
    same = before == layer(values)
    assert not same[1, :, 1, 1].any()
    same[1, :, 1, 1] = True
    assert same.all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_runs_in_every_precision(dtype: torch.dtype) -> None:
    layer, values = ResponseNorm(reach=4, strength=1e-3, exponent=0.75), 5 * torch.randn(2, 64, 4, 4)
    torch.testing.assert_close(layer(values.to(dtype)).float(), layer(values), rtol=0.03, atol=0.03)


def test_both_engines_have_the_gradients_of_a_loop() -> None:
    torch.manual_seed(0)
    norm = ResponseNorm(reach=2, strength=0.5, exponent=0.75)
    network = nn.Sequential(nn.Conv2d(1, 6, 3), norm, nn.Flatten(), nn.Linear(24, 3)).double()
    images, targets = batch(4, 1, 4, 4)
    assert_agrees(network, images, targets)
    found = MaterialisedEngine(network, squared_distance).gradients(images, targets)
    norms = torch.stack([grads.flatten(1).norm(dim=1) for grads in loop(network, images, targets).values()])
    assert_close(found.norms(), norms.norm(dim=0), tolerance=1e-10)


@pytest.mark.parametrize(
    "settings", [{"reach": -1}, {"reach": 1.5}, {"strength": 0.0}, {"strength": math.nan}, {"exponent": -1.0}], ids=str
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        ResponseNorm(**{"reach": 2, "strength": 1.0, "exponent": 0.75, **settings})  # type: ignore[arg-type]
