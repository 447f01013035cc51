"""Residual networks of He et al. (2016) with group normalisation (Wu and He, 2018) in the place of batch normalisation.

A batch norm mixes records and cannot be private; a group norm sees one record. Scales and shifts are as many, so a
network has the parameters of the one that everybody knows by its depth.

>>> sum(parameter.numel() for parameter in group_norm_resnet(num_classes=1000).parameters())
11689512
>>> sum(parameter.numel() for parameter in group_norm_resnet(num_classes=10, stem="small").parameters())
11173962
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.networks.stems import stem_layers

ORDERS = ("after", "before")
EXPANSION = 4


class _Shape(NamedTuple):
    """How many blocks each stage has, and whether they are bottlenecks."""

    num_blocks: tuple[int, ...]
    is_narrowed: bool


SHAPES: Mapping[int, _Shape] = MappingProxyType(
    {
        18: _Shape((2, 2, 2, 2), is_narrowed=False),
        34: _Shape((3, 4, 6, 3), is_narrowed=False),
        50: _Shape((3, 4, 6, 3), is_narrowed=True),
    }
)


def group_norm_resnet(
    *,
    depth: int = 18,
    num_classes: int = 10,
    num_groups: int = 32,
    order: str = "after",
    stem: str = "imagenet",
    stem_channels: int = 64,
    in_channels: int = 3,
) -> nn.Sequential:
    """A residual network of 18, 34 or 50 layers. Every stage doubles the channels of the one before.

    ``order`` says where the norm stands. ``"before"`` the activation is the network of the paper: a block's second
    activation follows the sum. ``"after"`` puts every convolution's activation and then its norm into the branch, and
    nothing follows the sum. ``stem="small"`` keeps the size of images of about 32 × 32.
    """
    shape = _shape(depth)
    validate.one_of(ORDERS, order=order)
    _check_groups(num_groups, validate.count(stem_channels=stem_channels))
    channels, stages = stem_channels, []
    for index, num in enumerate(shape.num_blocks):
        sizes = _sizes(stem_channels * 2**index, is_narrowed=shape.is_narrowed)
        for block in range(num):
            stride = 2 if index and not block else 1
            stages.append(Block(channels, sizes, stride=stride, num_groups=num_groups, order=order))
            channels = sizes[-1][0]
    network = nn.Sequential(
        *stem_layers(
            stem,
            in_channels,
            stem_channels,
            convolution=_convolution,
            activated=_activated(stem_channels, num_groups, order),
        ),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, num_classes),
    )
    network.apply(_initialise)
    return network


class Block(nn.Module):
    """Convolutions of these (channels, kernel sizes) beside a shortcut: a convolution and a norm where shapes change.

    The stride is that of the first convolution larger than one pixel.
    """

    def __init__(
        self, in_channels: int, sizes: tuple[tuple[int, int], ...], *, stride: int, num_groups: int, order: str
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, left = in_channels, stride
        for out_channels, kernel_size in sizes:
            here, left = (left, 1) if kernel_size > 1 else (1, left)
            layers.append(_convolution(channels, out_channels, kernel_size=kernel_size, stride=here))
            layers += _activated(out_channels, num_groups, order)
            channels = out_channels
        self.last: nn.Module = nn.Identity()
        if order == "before":  # the last activation follows the sum
            self.last = layers.pop()
        self.residual = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if (in_channels, stride) != (channels, 1):
            self.shortcut = nn.Sequential(
                _convolution(in_channels, channels, kernel_size=1, stride=stride), nn.GroupNorm(num_groups, channels)
            )

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.last(torch.add(self.shortcut(images), self.residual(images)))
        return result


def _shape(depth: int) -> _Shape:
    if validate.count(depth=depth) not in SHAPES:
        raise InvalidValue("depth", allowed="one of " + ", ".join(map(str, SHAPES)), given=depth)
    return SHAPES[depth]


def _sizes(channels: int, *, is_narrowed: bool) -> tuple[tuple[int, int], ...]:
    """The channels and the kernel size of each convolution of a block."""
    return ((channels, 1), (channels, 3), (EXPANSION * channels, 1)) if is_narrowed else ((channels, 3), (channels, 3))


def _check_groups(num_groups: int, narrowest: int) -> None:
    if narrowest % validate.count(num_groups=num_groups):
        raise InvalidValue("num_groups", allowed=f"a divisor of {narrowest}", given=num_groups)


def _activated(num_channels: int, num_groups: int, order: str) -> tuple[nn.Module, ...]:
    """The activation and the norm, in the order asked for."""
    norm = nn.GroupNorm(num_groups, num_channels)
    return (nn.ReLU(), norm) if order == "after" else (norm, nn.ReLU())


def _convolution(in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)


def _initialise(layer: nn.Module) -> None:
    """Weights of variance 2 / fan-out, for ReLUs, as in the paper; the classifier's begin small, with no bias."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)
