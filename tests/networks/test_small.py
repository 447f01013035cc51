"""The small network takes small square images of any size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.small import small_cnn


@pytest.mark.parametrize("side", [4, 5, 8, 11, 28, 33])
@pytest.mark.parametrize("channels", [1, 3])
def test_it_has_an_output_for_each_class_of_images_of_any_side(side: int, channels: int) -> None:
    network = small_cnn(in_channels=channels, image_side=side, num_classes=7)
    assert network(torch.rand(2, channels, side, side)).shape == (2, 7)


def test_every_weight_gets_a_gradient() -> None:
    network = small_cnn()
    network(torch.rand(3, 1, 8, 8)).sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in network.parameters())


def test_the_activation_is_the_one_that_is_given() -> None:
    kinds = {type(layer) for layer in small_cnn(activation=nn.ReLU)}
    assert nn.ReLU in kinds
    assert nn.Tanh not in kinds


@pytest.mark.parametrize("side", [3, 0, -8, 8.0, True])
def test_an_image_that_cannot_be_halved_twice_is_refused(side: object) -> None:
    with pytest.raises(InvalidValue, match="image_side must be a whole number >= 4"):
        small_cnn(image_side=side)  # type: ignore[arg-type]
