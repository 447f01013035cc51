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
    [({"depth": 15}, "depth"), ({"depth": 4}, "depth"), ({"num_groups": 3}, "num_groups"), ({"order": "x"}, "order")],
)
def test_what_is_not_such_a_network_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        wide_resnet(**given)
