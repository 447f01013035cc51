"""The trained factor: what it computes, and its gradients record by record."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lehr.gradients.ghost import GhostEngine
from lehr.networks.gain import Gain


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * targets).flatten(1).sum(1)


def test_a_gain_begins_at_zero_and_scales_what_passes() -> None:
    values = torch.randn(2, 3)
    assert not Gain()(values).any()
    assert Gain(2.0)(values).equal(2 * values)


def test_each_record_has_the_inner_product_of_its_input_and_output_gradient() -> None:
    inputs, targets = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64)
    found = GhostEngine(nn.Sequential(Gain(0.5)).double(), losses, compiled=False).gradients(inputs, targets)
    expected = (inputs * targets).sum((1, 2, 3))
    torch.testing.assert_close(found.norms(), expected.abs(), rtol=1e-12, atol=0)
    weights = torch.arange(4, dtype=torch.float64)
    torch.testing.assert_close(found.weighted_sum(weights), {"0.factor": weights @ expected}, rtol=1e-12, atol=0)


def test_views_are_averaged() -> None:
    inputs, targets = torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    found = GhostEngine(nn.Sequential(Gain()).double(), losses, views=2, compiled=False).gradients(inputs, targets)
    expected = (inputs.mean(1) * targets).sum(1)
    torch.testing.assert_close(found.norms(), expected.abs(), rtol=1e-12, atol=0)
