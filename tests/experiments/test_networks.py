from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments.networks import ResponseNorm, alexnet_like
from lehr.gradients.materialised import MaterialisedEngine
from tests.gradients.oracle import assert_agrees, assert_close, batch, loop, squared_distance


def small(*, frozen_convolutions: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return alexnet_like(image_side=4, frozen_convolutions=frozen_convolutions).double()


def test_the_norm_looks_at_four_channels_on_either_side_of_one_pixel() -> None:
    """Written out as TensorFlow has it: x / (1 + 0.001/9 · sum of squares over the window)^0.75."""
    (norm, *_) = (layer for layer in small().modules() if isinstance(layer, ResponseNorm))
    values = 30 * torch.randn(2, 64, 3, 3, dtype=torch.float64)
    windows = [values[:, max(0, channel - 4) : channel + 5].square().sum(1) for channel in range(64)]
    expected = values / (1 + 0.001 / 9 * torch.stack(windows, dim=1)) ** 0.75
    torch.testing.assert_close(norm(values), expected)
    assert not torch.allclose(norm(values), values, rtol=0.1)


@pytest.mark.parametrize("frozen", [False, True])
def test_both_engines_have_the_gradients_of_a_loop(frozen: bool) -> None:
    network, (images, targets) = small(frozen_convolutions=frozen), batch(3, 3, 4, 4)
    assert_agrees(network, images, targets)
    expected = loop(network, images, targets)
    assert ("convolutions.0.weight" in expected) is not frozen
    found = MaterialisedEngine(network, squared_distance).gradients(images, targets)
    norms = torch.stack([grads.flatten(1).norm(dim=1) for grads in expected.values()]).norm(dim=0)
    assert_close(found.norms(), norms, tolerance=1e-10)


@pytest.mark.parametrize("reach", [0, 4])
@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 12, 3, 4)], ids=str)
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
