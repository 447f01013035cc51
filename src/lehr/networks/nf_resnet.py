"""Residual networks without normalisation, after Brock, De and Smith (2021).

The paper is "Characterizing signal propagation to close the performance gap in unnormalized ResNets"; Sander et al.
(2023) train its NF-ResNet-50 privately on ImageNet. Weights are standardised instead of activations, each residual
branch is divided by the standard deviation that its input is expected to have, and a trained gain opens it.

>>> sum(parameter.numel() for parameter in nf_resnet50().parameters())
25557048
>>> small = nf_resnet(num_blocks=(2, 2, 2), stem_channels=56, stem="small", num_classes=10)  # for 32 × 32 pixels
>>> sum(parameter.numel() for parameter in small.parameters())
2641704
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.networks.gain import Gain
from lehr.networks.standardised import standardised_convolution
from lehr.networks.stems import stem_layers

# What a ReLU does to the standard deviation of a normal variable, undone.
RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
# How much of its variance a block adds to the stream, as a standard deviation.
BRANCH_STD = 0.2
EXPANSION = 4


def nf_resnet50(*, num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """The network of the papers."""
    return nf_resnet(num_classes=num_classes, in_channels=in_channels)


def nf_resnet(
    *,
    num_blocks: Sequence[int] = (3, 4, 6, 3),
    num_classes: int = 1000,
    stem_channels: int = 64,
    stem: str = "imagenet",
    in_channels: int = 3,
) -> nn.Sequential:
    """A network with this many bottleneck blocks in each stage; every stage doubles the channels of the one before.

    ``stem="small"`` keeps the size of images of about 32 × 32, where the other would leave a sixteenth of the pixels.
    """
    channels, num_before, stages = validate.count(stem_channels=stem_channels), 0, []
    for index, num in enumerate(_checked(num_blocks)):
        width = stem_channels * 2**index
        stages.append(_stage(channels, width, num_blocks=num, num_before=num_before, stride=1 if index == 0 else 2))
        channels, num_before = EXPANSION * width, num
    return nn.Sequential(
        *stem_layers(stem, in_channels, stem_channels, convolution=standardised_convolution, activated=()),
        *stages,
        Activation(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, num_classes),
    )


class Activation(nn.Module):
    """A ReLU that keeps variances, after dividing by the standard deviation that is expected of its input."""

    def __init__(self, *, expected_std: float = 1.0) -> None:
        super().__init__()
        self._factor = RELU_GAIN / expected_std

    def forward(self, values: Tensor) -> Tensor:
        return torch.relu(values) * self._factor


class Bottleneck(nn.Module):
    """Three convolutions, the first and last of one pixel, whose sum with the stream a gain opens."""

    def __init__(self, in_channels: int, channels: int, *, stride: int, expected_std: float) -> None:
        super().__init__()
        out_channels = EXPANSION * channels
        self.activation = Activation(expected_std=expected_std)
        self.branch = nn.Sequential(
            standardised_convolution(in_channels, channels, kernel_size=1),
            Activation(),
            standardised_convolution(channels, channels, kernel_size=3, stride=stride),
            Activation(),
            standardised_convolution(channels, out_channels, kernel_size=1),
            Gain(),
        )
        self.shortcut = None
        if (in_channels, stride) != (out_channels, 1):
            self.shortcut = _shortcut(in_channels, out_channels, stride=stride)

    def forward(self, stream: Tensor) -> Tensor:
        activated = self.activation(stream)
        kept = stream if self.shortcut is None else self.shortcut(activated)
        return torch.add(kept, self.branch(activated), alpha=BRANCH_STD)


def _checked(num_blocks: Sequence[int]) -> list[int]:
    if not isinstance(num_blocks, list | tuple) or not num_blocks:
        raise InvalidValue("num_blocks", allowed="how many blocks each stage has, as (3, 4, 6, 3)", given=num_blocks)
    return [validate.count(num_blocks=num) for num in num_blocks]


def _stage(in_channels: int, channels: int, *, num_blocks: int, num_before: int, stride: int) -> nn.Sequential:
    """Blocks of one size, after a stage of ``num_before`` blocks."""
    first = Bottleneck(in_channels, channels, stride=stride, expected_std=_stream_std(num_before))
    others = [
        Bottleneck(EXPANSION * channels, channels, stride=1, expected_std=_stream_std(index))
        for index in range(1, num_blocks)
    ]
    return nn.Sequential(first, *others)


def _stream_std(num_blocks: int) -> float:
    """After so many blocks of a stage: the shortcut of its first resets the variance to one, and each adds its part."""
    return math.sqrt(1 + num_blocks * BRANCH_STD**2)


def _shortcut(in_channels: int, out_channels: int, *, stride: int) -> nn.Module:
    layer = standardised_convolution(in_channels, out_channels, kernel_size=1)
    return layer if stride == 1 else nn.Sequential(nn.AvgPool2d(stride, ceil_mode=True, count_include_pad=False), layer)
