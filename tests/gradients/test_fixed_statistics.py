from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.gradients.fixed_statistics import FixedStatistics


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 5), (2, 3, 4, 4, 4)])
def test_it_normalises_channels_with_what_it_was_given(shape: tuple[int, ...]) -> None:
    values = torch.randn(*shape).double()
    mean, std = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.5, 1.0, 2.0]).double()
    weight, bias = torch.tensor([1.0, -1.0, 2.0]).double(), torch.tensor([0.0, 1.0, 2.0]).double()
    outputs = FixedStatistics(mean, std, weight=weight, bias=bias)(values)
    for channel in range(3):
        expected = (values[:, channel] - mean[channel]) / std[channel] * weight[channel] + bias[channel]
        assert torch.allclose(outputs[:, channel], expected)


def test_training_mode_changes_nothing() -> None:
    layer = FixedStatistics(torch.zeros(3), torch.ones(3))
    values = torch.randn(4, 3)
    assert torch.equal(layer.train()(values), layer.eval()(values))
    assert torch.equal(layer.mean, torch.zeros(3))


def test_statistics_are_saved_and_not_trained() -> None:
    layer = FixedStatistics(torch.zeros(3), torch.ones(3), weight=torch.ones(3), bias=nn.Parameter(torch.ones(3)))
    assert set(layer.state_dict()) == {"mean", "std", "weight", "bias"}
    assert [(name, parameter.requires_grad) for name, parameter in layer.named_parameters()] == [
        ("weight", False),
        ("bias", True),
    ]


def test_what_it_was_given_is_copied() -> None:
    mean = torch.zeros(3)
    layer = FixedStatistics(mean, torch.ones(3))
    mean += 1
    assert torch.equal(layer.mean, torch.zeros(3))
    assert "3, affine=False" in repr(layer)
