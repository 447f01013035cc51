"""Standardised weights: what is computed, and from which parameters."""

from __future__ import annotations

import torch
from torch import nn

from lehr.networks.standardised import Standardised, standardise, standardised_convolution


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


def test_every_convolution_of_a_network_is_standardised_from_the_weights_that_it_had() -> None:
    layers = nn.Conv2d(2, 3, 3, bias=False), nn.Conv2d(3, 4, 1)
    network = nn.Sequential(layers[0], nn.Sequential(layers[1]), nn.Linear(4, 2))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    standardise(network)
    names = [name for name, _ in network.named_parameters()]
    assert [name for name in names if name.endswith("gain")] == [
        "0.parametrizations.weight.0.gain",
        "1.0.parametrizations.weight.0.gain",
    ]
    kept = [parameter for name, parameter in network.named_parameters() if not name.endswith("gain")]
    by_size = sorted(before, key=torch.numel), sorted(kept, key=torch.numel)
    assert all(torch.equal(one, other) for one, other in zip(*by_size, strict=True))
    for layer in layers:
        torch.testing.assert_close(layer.weight.square().sum((1, 2, 3)), torch.ones(layer.out_channels))
