from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.networks.layers import Gain
from lehr.networks.residual import (
    Bottleneck,
    ResidualBlock,
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


@pytest.mark.parametrize("num_groups, count", [(16, 2_751_626), (None, 2_747_530)])
def test_weight_standardisation_adds_a_gain_for_each_channel(num_groups: int | None, count: int) -> None:
    with torch.device("meta"):
        network = wide_resnet(num_groups=num_groups, weight_standardised=True)
        plain = num_parameters(wide_resnet(num_groups=num_groups))
    channels = [layer.out_channels for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert num_parameters(network) == plain + sum(channels) == count


def test_the_order_of_norm_and_activation() -> None:
    assert kinds(wide_resnet(depth=10))[1:4] == [nn.Conv2d, nn.ReLU, nn.GroupNorm]
    assert kinds(wide_resnet(depth=10, order="before"))[1:4] == [nn.Conv2d, nn.GroupNorm, nn.ReLU]


@pytest.mark.parametrize("depth, num_convolutions", [(10, 7), (16, 13), (28, 25)])
def test_depth_counts_convolutions(depth: int, num_convolutions: int) -> None:
    network = wide_resnet(depth=depth, width=1)
    sides = [layer.kernel_size for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert sides.count((3, 3)) == num_convolutions


BASIC = ((8, 3), (8, 3))


def small(**given: Any) -> nn.Sequential:
    return group_norm_resnet(**{"stem_channels": 4, "num_groups": 2, "num_classes": 5, "stem": "small", **given})


@pytest.mark.parametrize("order", ["after", "before"])
@pytest.mark.parametrize("depth, count", [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_group_norm_resnets_have_the_parameters_of_their_depth(depth: int, count: int, order: str) -> None:
    with torch.device("meta"):
        network = group_norm_resnet(depth=depth, num_classes=1000, order=order)
    assert num_parameters(network) == count


@pytest.mark.parametrize("depth", [18, 50])
@pytest.mark.parametrize("stem, side", [("small", 4), ("imagenet", 1)])
def test_every_stage_but_the_first_halves_the_image(depth: int, stem: str, side: int) -> None:
    network = small(depth=depth, stem=stem)
    assert network[:-3](torch.zeros(1, 3, 32, 32)).shape[2:] == (side, side)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


def test_the_order_within_a_block() -> None:
    def kinds(order: str) -> list[type[nn.Module]]:
        return [
            type(layer)
            for layer in ResidualBlock(8, BASIC, stride=1, num_groups=2, order=order, is_original=True).residual
        ]

    assert kinds("after") == 2 * [nn.Conv2d, nn.ReLU, nn.GroupNorm]
    assert kinds("before") == [nn.Conv2d, nn.GroupNorm, nn.ReLU, nn.Conv2d, nn.GroupNorm]


@pytest.mark.parametrize("order, is_cut", [("before", True), ("after", False)])
def test_only_the_papers_order_has_an_activation_after_the_sum(order: str, is_cut: bool) -> None:
    block = ResidualBlock(8, BASIC, stride=1, num_groups=2, order=order, is_original=True)
    result: Tensor = block(torch.randn(4, 8, 6, 6, generator=torch.Generator().manual_seed(1)))
    assert bool((result >= 0).all()) is is_cut


def test_nf_resnet_50_has_a_gain_for_each_block() -> None:
    with torch.device("meta"):
        network = nf_resnet50()
        assert str(nf_resnet()) == str(network)
    num_gains = sum(isinstance(layer, Gain) for layer in network.modules())
    assert num_gains == 3 + 4 + 6 + 3
    assert num_parameters(network) == 25_557_032 + num_gains


@pytest.mark.parametrize("expected_std", [1.0, 1.5])
def test_a_scaled_relu_gives_variance_one(expected_std: float) -> None:
    values = expected_std * torch.randn(200_000, generator=torch.Generator().manual_seed(1))
    assert ScaledReLU(expected_std=expected_std)(values).var().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("in_channels, variance", [(64, 1.2**2 + 0.2**2), (32, 1 + 0.2**2)])
def test_blocks_keep_the_expected_variance(in_channels: int, variance: float) -> None:
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
def test_impossible_arguments_are_refused_by_name(make: Any, given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        make(**given)
    assert refused.value.name == name
