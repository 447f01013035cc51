"""Wide residual networks with group normalisation.

After Zagoruyko and Komodakis (2016). In private training, De et al. (2022) and Sander et al. (2023, "TAN Without a
Burn") found that the norm does better after the activation than before it.
Only the last layer has a bias: elsewhere a norm's shift follows, or nothing does.

>>> sum(parameter.numel() for parameter in wide_resnet(num_groups=None).parameters())
2745274
>>> sum(parameter.numel() for parameter in wide_resnet().parameters())
2749370
>>> sum(parameter.numel() for parameter in wide_resnet(weight_standardised=True).parameters())  # a gain per channel
2751626
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.networks.standardised import standardise

ORDERS = ("after", "before")
STEM_CHANNELS = 16


def wide_resnet(
    *,
    depth: int = 16,
    width: int = 4,
    num_classes: int = 10,
    num_groups: int | None = 16,
    order: str = "after",
    weight_standardised: bool = False,
    in_channels: int = 3,
) -> nn.Sequential:
    """A wide residual network: ``depth`` is 6n + 4, and the three stages have 16, 32 and 64 times ``width`` channels.

    ``order`` says where the norm stands: ``"after"`` the activation or ``"before"`` it. Without ``num_groups`` there
    are no norms. ``weight_standardised`` standardises the weight of every convolution and gives each of its channels a
    trained gain, as De et al. (2022) do; it costs no privacy and can stand beside norms or in their place.
    """
    validate.true_or_false(weight_standardised=weight_standardised)
    num_blocks = _blocks_per_stage(depth)
    validate.one_of(ORDERS, order=order)
    channels = [STEM_CHANNELS, *(STEM_CHANNELS * validate.count(width=width) * factor for factor in (1, 2, 4))]
    _check_groups(num_groups, channels[1])
    stages = [
        _stage(before, after, num_blocks=num_blocks, stride=stride, num_groups=num_groups, order=order)
        for (before, after), stride in zip(itertools.pairwise(channels), (1, 2, 2), strict=True)
    ]
    network = nn.Sequential(
        _convolution(in_channels, STEM_CHANNELS, kernel_size=3),
        *stages,
        _activated(channels[-1], num_groups, order),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels[-1], num_classes),
    )
    network.apply(_initialise)
    if weight_standardised:
        standardise(network)
    return network


class Block(nn.Module):
    """Two convolutions, each with its activation and norm, beside a shortcut: a convolution where shapes change."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, num_groups: int | None, order: str) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(in_channels, out_channels, kernel_size=3, stride=stride),
            _activated(out_channels, num_groups, order),
            _convolution(out_channels, out_channels, kernel_size=3),
            _activated(out_channels, num_groups, order),
        )
        self.shortcut: nn.Module = nn.Identity()
        if (in_channels, stride) != (out_channels, 1):
            self.shortcut = _convolution(in_channels, out_channels, kernel_size=1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        return torch.add(self.shortcut(images), self.residual(images))


def _blocks_per_stage(depth: int) -> int:
    if validate.count(depth=depth) < 10 or (depth - 4) % 6:
        raise InvalidValue("depth", allowed="6n + 4 for a whole n >= 1, as 10, 16, 28 or 40", given=depth)
    return (depth - 4) // 6


def _check_groups(num_groups: int | None, narrowest: int) -> None:
    if num_groups is not None and narrowest % validate.count(num_groups=num_groups):
        raise InvalidValue("num_groups", allowed=f"a divisor of {narrowest}, or None for no norms", given=num_groups)


def _stage(
    in_channels: int, out_channels: int, *, num_blocks: int, stride: int, num_groups: int | None, order: str
) -> nn.Sequential:
    first = Block(in_channels, out_channels, stride=stride, num_groups=num_groups, order=order)
    others = [
        Block(out_channels, out_channels, stride=1, num_groups=num_groups, order=order) for _ in range(num_blocks - 1)
    ]
    return nn.Sequential(first, *others)


def _activated(num_channels: int, num_groups: int | None, order: str) -> nn.Sequential:
    """The activation and the norm, in the order asked for."""
    activation: nn.Module = nn.ReLU()
    if num_groups is None:
        return nn.Sequential(activation)
    norm = nn.GroupNorm(num_groups, num_channels)
    return nn.Sequential(activation, norm) if order == "after" else nn.Sequential(norm, activation)


def _convolution(in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)


def _initialise(layer: nn.Module) -> None:
    """Weights of variance 1 / fan-in, biases of zero, as in both papers."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
