"""The small convolutional networks have the sizes that the papers state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lehr.networks.convolutional import cifar_cnn, paper_cnn, pooled_cnn


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_the_networks_have_the_number_of_parameters_of_the_papers() -> None:
    assert num_parameters(paper_cnn()) == 26_010
    assert num_parameters(cifar_cnn()) == 605_226
    assert num_parameters(pooled_cnn()) == 550_570


def test_the_pools_of_the_paper_network_move_by_one_pixel() -> None:
    images = torch.zeros(1, 1, 28, 28)
    sides = []
    for layer in list(paper_cnn())[:6]:
        images = layer(images)
        sides.append(images.shape[-1])
    assert sides == [13, 13, 12, 5, 5, 4]


def test_images_become_one_score_per_class() -> None:
    assert paper_cnn(num_classes=7)(torch.zeros(2, 1, 28, 28)).shape == (2, 7)
    assert cifar_cnn(num_classes=7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert pooled_cnn(num_classes=7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("build", [paper_cnn, cifar_cnn, pooled_cnn])
def test_the_activation_is_tanh_unless_another_is_given(build: Callable[..., nn.Sequential]) -> None:
    assert any(isinstance(layer, nn.Tanh) for layer in build().modules())
    other = list(build(activation=nn.ReLU).modules())
    assert any(isinstance(layer, nn.ReLU) for layer in other)
    assert not any(isinstance(layer, nn.Tanh) for layer in other)
