"""Networks by their names, from words and numbers that a file can hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.activations import ACTIVATIONS
from lehr.networks.by_name import NETWORKS, build, default_for
from lehr.networks.small import small_cnn
from lehr.networks.tempered_sigmoid import TemperedSigmoid


def test_a_name_with_arguments_is_the_function_with_arguments() -> None:
    torch.manual_seed(0)
    built = build("small_cnn", num_classes=4, activation="relu")
    torch.manual_seed(0)
    called = small_cnn(num_classes=4, activation=nn.ReLU)
    assert str(built) == str(called)
    for one, other in zip(built.parameters(), called.parameters(), strict=True):
        assert torch.equal(one, other)


def test_every_network_is_called_what_its_function_is_called() -> None:
    assert list(NETWORKS) == [function.__name__ for function in NETWORKS.values()]


@pytest.mark.parametrize("word", ACTIVATIONS)
def test_every_activation_can_be_said(word: str) -> None:
    assert any(type(layer) is ACTIVATIONS[word] for layer in build("small_cnn", activation=word).modules())


def test_an_activation_can_be_said_with_its_numbers() -> None:
    layers = build("paper_cnn", activation="tempered_sigmoid(1.5, 3, 0.5)").modules()
    assert [str(layer) for layer in layers if isinstance(layer, TemperedSigmoid)] == 3 * [
        "TemperedSigmoid(scale=1.5, inverse_temperature=3, offset=0.5)"
    ]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 17, 17)], ids=str)
def test_the_default_takes_images_of_the_shape_it_is_for(shape: tuple[int, ...]) -> None:
    name, arguments = default_for(shape, num_classes=5)
    assert build(name, **arguments)(torch.rand(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize("shape", [(20,), (1, 8, 9), (), (2, 3, 4, 4)], ids=str)
def test_for_what_is_no_square_image_a_network_must_be_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValue, match="network must be named where the records are no square images"):
        default_for(shape, num_classes=5)


@pytest.mark.parametrize(
    "name, arguments, says",
    [
        ("resnet", {}, "network must be one of .*small_cnn.*; given: 'resnet'"),
        (None, {}, "network must be one of"),
        ("small_cnn", {"depth": 3}, "argument of small_cnn must be one of in_channels, .*; given: 'depth'"),
        ("small_cnn", {"activation": "step"}, "activation must be one of elu, .*; given: 'step'"),
        ("small_cnn", {"activation": nn.ReLU}, "activation must be one of"),
        ("small_cnn", {"num_classes": "ten"}, "arguments of small_cnn must be such that it can be built"),
        ("small_cnn", {"num_classes": -1}, "arguments of small_cnn must be such that it can be built"),
        ("small_cnn", {"name": "big_cnn"}, "argument of small_cnn must be one of"),
        ("small_cnn", {"image_side": 10**9}, "(bytes|arguments) of small_cnn must be"),
        ("vision_transformer", {"depth": 10**12}, "depth must be at most"),
        ("nf_resnet", {"num_blocks": [10**12]}, "depth must be at most"),
        ("small_cnn", {"image_side": 2}, "image_side must be a whole number >= 4; given: 2"),
    ],
)
def test_what_is_unknown_or_cannot_be_built_is_refused_by_name(name: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        build(name, **arguments)
