"""Residual networks with group normalisation: their size, their order, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.networks.group_norm_resnet import Block, group_norm_resnet

BASIC = ((8, 3), (8, 3))


def small(**given: Any) -> nn.Sequential:
    return group_norm_resnet(**{"stem_channels": 4, "num_groups": 2, "num_classes": 5, "stem": "small", **given})


@pytest.mark.parametrize("order", ["after", "before"])
@pytest.mark.parametrize("depth, count", [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_a_network_has_the_parameters_that_are_known_for_its_depth(depth: int, count: int, order: str) -> None:
    with torch.device("meta"):
        network = group_norm_resnet(depth=depth, num_classes=1000, order=order)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_depth_counts_the_convolutions_of_the_branches_and_the_two_ends() -> None:
    for depth in (18, 34, 50):
        with torch.device("meta"):
            network = small(depth=depth)
        branches = [layer for name, layer in network.named_modules() if ".residual." in name]
        assert sum(isinstance(layer, nn.Conv2d) for layer in branches) + 2 == depth


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize("stem, side", [("small", 4), ("imagenet", 1)])
def test_three_stages_halve_what_the_stem_leaves(depth: int, stem: str, side: int) -> None:
    network = small(depth=depth, stem=stem)
    assert network[:-3](torch.zeros(1, 3, 32, 32)).shape[2:] == (side, side)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


def test_the_norm_stands_where_it_is_asked_for() -> None:
    def kinds(order: str) -> list[type[nn.Module]]:
        return [type(layer) for layer in Block(8, BASIC, stride=1, num_groups=2, order=order).residual]

    assert kinds("after") == 2 * [nn.Conv2d, nn.ReLU, nn.GroupNorm]
    assert kinds("before") == [nn.Conv2d, nn.GroupNorm, nn.ReLU, nn.Conv2d, nn.GroupNorm]


@pytest.mark.parametrize("order, is_cut", [("before", True), ("after", False)])
def test_only_the_order_of_the_paper_has_an_activation_behind_the_sum(order: str, is_cut: bool) -> None:
    block = Block(8, BASIC, stride=1, num_groups=2, order=order)
    result: Tensor = block(torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(1)))
    assert bool((result >= 0).all()) is is_cut


def test_a_record_does_not_move_another() -> None:
    network, images = small(), torch.randn(3, 3, 16, 16)
    alone = network(images[:1])
    torch.testing.assert_close(network(images)[:1], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "given, name",
    [
        ({"depth": 20}, "depth"),
        ({"num_groups": 3}, "num_groups"),
        ({"order": "x"}, "order"),
        ({"stem": "x"}, "stem"),
        ({"stem_channels": 0}, "stem_channels"),
    ],
)
def test_what_is_not_such_a_network_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        small(**given)
