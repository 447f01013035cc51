from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments.networks import alexnet_like
from lehr.gradients.materialised import MaterialisedEngine
from tests.gradients.oracle import assert_agrees, assert_close, batch, loop, squared_distance


def small(*, frozen_convolutions: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return alexnet_like(image_side=4, frozen_convolutions=frozen_convolutions).double()


def test_the_norm_is_tensorflows() -> None:
    """x / (1 + 0.001/9 · sum of squares over four channels on either side)^0.75, written out."""
    norm = next(layer for layer in small().modules() if isinstance(layer, nn.LocalResponseNorm))
    values = 30 * torch.randn(2, 64, 3, 3, dtype=torch.float64)
    windows = [values[:, max(0, channel - 4) : channel + 5].square().sum(1) for channel in range(64)]
    expected = values / (1 + 0.001 / 9 * torch.stack(windows, dim=1)) ** 0.75
    torch.testing.assert_close(norm(values), expected)


@pytest.mark.parametrize("frozen", [False, True])
def test_both_engines_have_the_gradients_of_a_loop(frozen: bool) -> None:
    network, (images, targets) = small(frozen_convolutions=frozen), batch(3, 3, 4, 4)
    assert_agrees(network, images, targets)
    expected = loop(network, images, targets)
    assert ("convolutions.0.weight" in expected) is not frozen
    found = MaterialisedEngine(network, squared_distance).gradients(images, targets)
    norms = torch.stack([grads.flatten(1).norm(dim=1) for grads in expected.values()]).norm(dim=0)
    assert_close(found.norms(), norms, tolerance=1e-10)
