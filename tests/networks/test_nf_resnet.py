"""Residual networks without normalisation: their size, and that variances stay where they are expected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.gain import Gain
from lehr.networks.nf_resnet import Activation, Bottleneck, nf_resnet, nf_resnet50


def test_fifty_layers_have_the_parameters_of_a_residual_network_and_one_gain_for_each_block() -> None:
    network = nf_resnet50()
    num_gains = sum(isinstance(layer, Gain) for layer in network.modules())
    assert num_gains == 3 + 4 + 6 + 3
    assert sum(parameter.numel() for parameter in network.parameters()) == 25_557_032 + num_gains


def test_no_layer_normalises_activations() -> None:
    assert not any("Norm" in type(layer).__name__ for layer in nf_resnet50().modules())


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


def test_a_small_stem_keeps_the_pixels_that_the_other_pools_away() -> None:
    arguments: dict[str, Any] = {"num_blocks": (1,), "num_classes": 5, "stem_channels": 4}
    images = torch.zeros(1, 3, 32, 32)
    small, large = nf_resnet(**arguments, stem="small"), nf_resnet(**arguments, stem="imagenet")
    assert small[:2](images).shape == (1, 16, 32, 32)
    assert large[:3](images).shape == (1, 16, 8, 8)


def test_fifty_layers_are_what_it_is_without_arguments() -> None:
    with torch.device("meta"):
        assert str(nf_resnet()) == str(nf_resnet50())


@pytest.mark.parametrize(
    "given, name",
    [
        ({"num_blocks": ()}, "num_blocks"),
        ({"num_blocks": "333"}, "num_blocks"),
        ({"num_blocks": (2, 0)}, "num_blocks"),
        ({"stem": "large", "num_blocks": (1,)}, "stem"),
        ({"stem_channels": 0}, "stem_channels"),
    ],
)
def test_what_is_not_such_a_network_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        nf_resnet(**given)
