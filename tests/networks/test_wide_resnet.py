"""Wide residual networks: their size, their order, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.wide_resnet import wide_resnet


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def kinds(network: nn.Module) -> list[type[nn.Module]]:
    return [type(layer) for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.GroupNorm | nn.ReLU)]


@pytest.mark.parametrize("order", ["after", "before"])
def test_sixteen_layers_four_wide_have_the_parameters_of_the_papers(order: str) -> None:
    assert num_parameters(wide_resnet(num_groups=None, order=order)) == 2_745_274
    assert num_parameters(wide_resnet(order=order)) == 2_749_370


@pytest.mark.parametrize("num_groups, count", [(16, 2_751_626), (None, 2_747_530)])
def test_standardised_weights_add_a_gain_for_each_channel_of_a_convolution(num_groups: int | None, count: int) -> None:
    network = wide_resnet(num_groups=num_groups, weight_standardised=True)
    channels = [layer.out_channels for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    plain = num_parameters(wide_resnet(num_groups=num_groups))
    assert num_parameters(network) == plain + sum(channels) == count


def test_standardised_weights_have_mean_zero_and_the_scale_of_the_weights_that_are_not() -> None:
    network = wide_resnet(depth=10, width=1, weight_standardised=True)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            torch.testing.assert_close(layer.weight.mean((1, 2, 3)), torch.zeros(layer.out_channels), atol=1e-6, rtol=0)
            torch.testing.assert_close(layer.weight.square().sum((1, 2, 3)), torch.ones(layer.out_channels))


def test_the_norm_stands_after_the_activation_unless_asked_otherwise() -> None:
    assert kinds(wide_resnet(depth=10))[1:4] == [nn.Conv2d, nn.ReLU, nn.GroupNorm]
    assert kinds(wide_resnet(depth=10, order="before"))[1:4] == [nn.Conv2d, nn.GroupNorm, nn.ReLU]


@pytest.mark.parametrize("depth, num_convolutions", [(10, 7), (16, 13), (28, 25)])
def test_depth_counts_the_convolutions_of_the_blocks(depth: int, num_convolutions: int) -> None:
    network = wide_resnet(depth=depth, width=1)
    sides = [layer.kernel_size for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert sides.count((3, 3)) == num_convolutions


def test_images_become_one_score_per_class() -> None:
    network = wide_resnet(depth=10, width=1, num_classes=5, num_groups=4, in_channels=1)
    assert network(torch.zeros(2, 1, 16, 16)).shape == (2, 5)


def test_channels_last_passes_through_every_block() -> None:
    network = wide_resnet(depth=10, width=1)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    maps = torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last)
    for stage in list(network)[:4]:
        maps = stage(maps)
        assert maps.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "given, name",
    [
        ({"depth": 15}, "depth"),
        ({"depth": 4}, "depth"),
        ({"num_groups": 3}, "num_groups"),
        ({"order": "x"}, "order"),
        ({"weight_standardised": 1}, "weight_standardised"),
    ],
)
def test_what_is_not_such_a_network_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        wide_resnet(**given)
