"""Networks by their names, from words and numbers that a file can hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.layers import Projection
from lehr.networks.registry import build, default_for
from lehr.networks.small import cifar_cnn, paper_cnn, pooled_cnn, projected_mlp, small_cnn


def test_a_network_is_built_by_name() -> None:
    torch.manual_seed(0)
    built = build("small_cnn", num_classes=4, activation="relu")
    torch.manual_seed(0)
    called = small_cnn(num_classes=4, activation=nn.ReLU)
    assert str(built) == str(called)
    for one, other in zip(built.parameters(), called.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 17, 17), (20,)], ids=str)
def test_the_default_network_takes_records_of_its_shape(shape: tuple[int, ...]) -> None:
    name, arguments = default_for(shape, num_classes=5)
    assert build(name, **arguments)(torch.rand(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize("shape", [(1, 8, 9), (), (2, 3, 4, 4)], ids=str)
def test_only_rows_and_square_images_have_a_default_network(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValue, match="network"):
        default_for(shape, num_classes=5)


@pytest.mark.parametrize(
    "network, arguments, name",
    [
        ("resnet", {}, "network"),
        (None, {}, "network"),
        ("small_cnn", {"depth": 3}, "argument of small_cnn"),
        ("small_cnn", {"name": "big_cnn"}, "argument of small_cnn"),
        ("small_cnn", {"activation": "step"}, "activation"),
        ("small_cnn", {"activation": nn.ReLU}, "activation"),
        ("small_cnn", {"num_classes": "ten"}, "arguments of small_cnn"),
        ("small_cnn", {"num_classes": -1}, "arguments of small_cnn"),
        ("small_cnn", {"image_side": 10**6}, "bytes of small_cnn"),
        ("vision_transformer", {"depth": 10**12}, "depth"),
        ("nf_resnet", {"num_blocks": [10**12]}, "depth"),
        *(("small_cnn", {"image_side": side}, "image_side") for side in (3, 0, -8, 8.0, True)),
        *(("projected_mlp", {size: 0}, size) for size in ("inputs", "dimensions", "hidden")),
        *(("projected_mlp", {size: 2.5}, size) for size in ("inputs", "dimensions", "hidden")),
    ],
)
def test_unknown_and_impossible_networks_are_refused_by_name(
    network: Any, arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        build(network, **arguments)
    assert refused.value.name == name


def test_the_pools_of_the_paper_network_move_by_one_pixel() -> None:
    images = torch.zeros(1, 1, 28, 28)
    sides = []
    for layer in list(paper_cnn())[:6]:
        images = layer(images)
        sides.append(images.shape[-1])
    assert sides == [13, 13, 12, 5, 5, 4]


@pytest.mark.parametrize("build", [paper_cnn, cifar_cnn, pooled_cnn])
def test_the_default_activation_is_tanh(build: Callable[..., nn.Sequential]) -> None:
    assert any(isinstance(layer, nn.Tanh) for layer in build().modules())
    other = list(build(activation=nn.ReLU).modules())
    assert any(isinstance(layer, nn.ReLU) for layer in other)
    assert not any(isinstance(layer, nn.Tanh) for layer in other)


@pytest.mark.parametrize("side", [4, 5, 8, 11, 28, 33])
@pytest.mark.parametrize("channels", [1, 3])
def test_small_networks_take_images_of_any_side(side: int, channels: int) -> None:
    network = small_cnn(in_channels=channels, image_side=side, num_classes=7)
    assert network(torch.rand(2, channels, side, side)).shape == (2, 7)


def test_the_projected_network_has_the_sizes_of_the_paper() -> None:
    network = projected_mlp()
    assert network.get_buffer("projection.components").shape == (784, 60)
    assert network(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    assert [type(layer) for layer in network] == [Projection, nn.Linear, nn.ReLU, nn.Linear]
    assert not any("projection" in name for name, _ in network.named_parameters())


def test_a_projection_is_a_product_with_its_components_and_begins_as_zero() -> None:
    layer, records = Projection(6, 2).double(), torch.randn(4, 1, 2, 3, dtype=torch.float64)
    assert not layer(records).any()
    layer.components.normal_()
    expected = torch.stack([record.reshape(-1) @ layer.components for record in records])
    torch.testing.assert_close(layer(records), expected)
