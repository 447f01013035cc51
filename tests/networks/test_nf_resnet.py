"""Residual networks without normalisation: their size, and that variances stay where they are expected."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.networks.gain import Gain
from lehr.networks.nf_resnet import (
    Activation,
    Bottleneck,
    Standardised,
    nf_resnet,
    nf_resnet50,
    standardised_convolution,
)


def test_fifty_layers_have_the_parameters_of_a_residual_network_and_one_gain_for_each_block() -> None:
    network = nf_resnet50()
    num_gains = sum(isinstance(layer, Gain) for layer in network.modules())
    assert num_gains == 3 + 4 + 6 + 3
    assert sum(parameter.numel() for parameter in network.parameters()) == 25_557_032 + num_gains


def test_no_layer_normalises_activations() -> None:
    assert not any("Norm" in type(layer).__name__ for layer in nf_resnet50().modules())


def test_a_standardised_weight_has_mean_zero_and_variance_one_over_fan_in_times_the_gain() -> None:
    standardised = Standardised(5)
    torch.nn.init.constant_(standardised.gain, 3.0)
    weight = standardised(4 + 7 * torch.randn(5, 8, 3, 3))
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.square().sum((1, 2, 3)), torch.full((5,), 9.0))


def test_a_standardised_weight_does_not_depend_on_the_size_of_its_parameter() -> None:
    weight = torch.randn(4, 3, 3, 3)
    torch.testing.assert_close(Standardised(4)(weight), Standardised(4)(10 * weight))


def test_a_weight_without_variance_is_zero_and_not_nan() -> None:
    assert not Standardised(4)(torch.ones(4, 3, 3, 3)).any()


def test_the_weight_of_a_convolution_is_computed_from_a_parameter_and_a_gain() -> None:
    names = {name for name, _ in standardised_convolution(3, 4, kernel_size=3).named_parameters()}
    assert names == {"bias", "parametrizations.weight.original", "parametrizations.weight.0.gain"}


@pytest.mark.parametrize("expected_std", [1.0, 1.5])
def test_an_activation_gives_variance_one(expected_std: float) -> None:
    values = expected_std * torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    assert Activation(expected_std=expected_std)(values).var().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("in_channels, variance", [(64, 1.2**2 + 0.2**2), (32, 1 + 0.2**2)])
def test_an_open_block_adds_its_part_to_the_stream_and_a_shortcut_resets_it(in_channels: int, variance: float) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        block = Bottleneck(in_channels, 16, stride=1, expected_std=1.2)
        stream = 1.2 * torch.randn(32, in_channels, 8, 8)
    for layer in block.modules():
        if isinstance(layer, Gain):
            nn.init.ones_(layer.factor)
    assert block(stream).var().item() == pytest.approx(variance, rel=0.1)


def test_images_become_one_score_per_class() -> None:
    network = nf_resnet(num_blocks=(1, 2), num_classes=5, stem_channels=4, in_channels=1)
    assert network(torch.zeros(2, 1, 32, 32)).shape == (2, 5)
    assert network(torch.zeros(2, 1, 30, 30)).shape == (2, 5)
