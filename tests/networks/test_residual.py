from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.networks.layers import Gain
from lehr.networks.residual import (
    Bottleneck,
    GroupNormBlock,
    ScaledReLU,
    group_norm_resnet,
    nf_resnet,
    nf_resnet50,
    wide_resnet,
)


def num_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def kinds(network: nn.Module) -> list[type[nn.Module]]:
    return [type(layer) for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.GroupNorm | nn.ReLU)]


@pytest.mark.parametrize("order", ["after", "before"])
def test_sixteen_layers_four_wide_have_the_parameters_of_the_papers(order: str) -> None:
    with torch.device("meta"):
        assert num_parameters(wide_resnet(num_groups=None, order=order)) == 2_745_274
        assert num_parameters(wide_resnet(order=order)) == 2_749_370


@pytest.mark.parametrize("num_groups, count", [(16, 2_751_626), (None, 2_747_530)])
def test_standardised_weights_add_a_gain_for_each_channel_of_a_convolution(num_groups: int | None, count: int) -> None:
    with torch.device("meta"):
        network = wide_resnet(num_groups=num_groups, weight_standardised=True)
        plain = num_parameters(wide_resnet(num_groups=num_groups))
    channels = [layer.out_channels for layer in network.modules() if isinstance(layer, nn.Conv2d)]
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


BASIC = ((8, 3), (8, 3))


def small(**given: Any) -> nn.Sequential:
    return group_norm_resnet(**{"stem_channels": 4, "num_groups": 2, "num_classes": 5, "stem": "small", **given})


@pytest.mark.parametrize("order", ["after", "before"])
@pytest.mark.parametrize("depth, count", [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_a_network_has_the_parameters_that_are_known_for_its_depth(depth: int, count: int, order: str) -> None:
    with torch.device("meta"):
        network = group_norm_resnet(depth=depth, num_classes=1000, order=order)
    assert num_parameters(network) == count


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
        return [type(layer) for layer in GroupNormBlock(8, BASIC, stride=1, num_groups=2, order=order).residual]

    assert kinds("after") == 2 * [nn.Conv2d, nn.ReLU, nn.GroupNorm]
    assert kinds("before") == [nn.Conv2d, nn.GroupNorm, nn.ReLU, nn.Conv2d, nn.GroupNorm]


@pytest.mark.parametrize("order, is_cut", [("before", True), ("after", False)])
def test_only_the_order_of_the_paper_has_an_activation_behind_the_sum(order: str, is_cut: bool) -> None:
    block = GroupNormBlock(8, BASIC, stride=1, num_groups=2, order=order)
    result: Tensor = block(torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(1)))
    assert bool((result >= 0).all()) is is_cut


def test_fifty_layers_have_the_parameters_of_a_residual_network_and_one_gain_for_each_block() -> None:
    with torch.device("meta"):
        network = nf_resnet50()
        assert str(nf_resnet()) == str(network)
    num_gains = sum(isinstance(layer, Gain) for layer in network.modules())
    assert num_gains == 3 + 4 + 6 + 3
    assert num_parameters(network) == 25_557_032 + num_gains


@pytest.mark.parametrize("expected_std", [1.0, 1.5])
def test_an_activation_gives_variance_one(expected_std: float) -> None:
    values = expected_std * torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    assert ScaledReLU(expected_std=expected_std)(values).var().item() == pytest.approx(1, abs=0.02)


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


@pytest.mark.parametrize(
    "make, given, name",
    [
        (wide_resnet, {"depth": 15}, "depth"),
        (wide_resnet, {"depth": 4}, "depth"),
        (wide_resnet, {"num_groups": 3}, "num_groups"),
        (wide_resnet, {"order": "x"}, "order"),
        (wide_resnet, {"weight_standardised": 1}, "weight_standardised"),
        (small, {"depth": 20}, "depth"),
        (small, {"num_groups": 3}, "num_groups"),
        (small, {"order": "x"}, "order"),
        (small, {"stem": "x"}, "stem"),
        (small, {"stem_channels": 0}, "stem_channels"),
        (nf_resnet, {"num_blocks": ()}, "num_blocks"),
        (nf_resnet, {"num_blocks": "333"}, "num_blocks"),
        (nf_resnet, {"num_blocks": (2, 0)}, "num_blocks"),
        (nf_resnet, {"stem": "large", "num_blocks": (1,)}, "stem"),
        (nf_resnet, {"stem_channels": 0}, "stem_channels"),
    ],
)
def test_what_is_not_such_a_network_is_refused_by_name(make: Any, given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        make(**given)
