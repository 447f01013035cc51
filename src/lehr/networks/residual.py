"""Residual networks without batch normalisation, which would mix records.

- ``wide_resnet`` (Zagoruyko and Komodakis 2016) with group norms, as De et al. (2022) and Sander et al. (2023) train it
  privately; they found that a norm does better after the activation than before it
- ``group_norm_resnet`` (He et al. 2016) with group norms (Wu and He 2018): as many parameters as with batch norms
- ``nf_resnet`` (Brock, De and Smith 2021) without norms: weights are standardised, each branch is divided by the
  standard deviation expected of its input and opened by a trained gain; Sander et al. (2023) train NF-ResNet-50

>>> def count(network): return sum(parameter.numel() for parameter in network.parameters())
>>> count(wide_resnet()), count(wide_resnet(num_groups=None)), count(wide_resnet(weight_standardised=True))
(2749370, 2745274, 2751626)
>>> count(group_norm_resnet(num_classes=1000)), count(group_norm_resnet(num_classes=10, stem="small"))
(11689512, 11173962)
>>> count(nf_resnet50()), count(nf_resnet(num_blocks=(2, 2, 2), stem_channels=56, stem="small", num_classes=10))
(25557048, 2641704)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.networks.layers import Gain, check_divides, standardise, standardised_convolution

NORM_ORDERS = ("after", "before")
STEMS = ("imagenet", "small")
WIDE_STEM_CHANNELS = 16
EXPANSION = 4  # of the channels by a bottleneck block
RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))  # undoes what a ReLU does to the standard deviation of a normal variable
BRANCH_STD = 0.2  # how much of its variance a normaliser-free block adds to the stream, as a standard deviation

# By depth: the number of blocks of each stage, and whether they are bottlenecks.
GROUP_NORM_DEPTHS = {18: ((2, 2, 2, 2), False), 34: ((3, 4, 6, 3), False), 50: ((3, 4, 6, 3), True)}


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

    ``order`` puts the norm ``"after"`` the activation or ``"before"`` it. Without ``num_groups`` there are no norms.
    ``weight_standardised`` standardises the weight of every convolution and gives each of its channels a trained gain,
    as De et al. (2022) do. Only the last layer has a bias.
    """
    validate.true_or_false(weight_standardised=weight_standardised)
    if validate.count(depth=depth) < 10 or (depth - 4) % 6:
        raise InvalidValue("depth", allowed="6n + 4 for a whole n >= 1, as 10, 16, 28 or 40", given=depth)
    validate.one_of(NORM_ORDERS, order=order)
    stem = WIDE_STEM_CHANNELS
    channels = [stem, *(stem * validate.count(width=width) * factor for factor in (1, 2, 4))]
    if num_groups is not None:
        check_divides("num_groups", num_groups, of=channels[1])
    blocks = []
    for (before, after), stride in zip(itertools.pairwise(channels), (1, 2, 2), strict=True):
        for _ in range((depth - 4) // 6):
            sizes = ((after, 3), (after, 3))
            blocks.append(ResidualBlock(before, sizes, stride=stride, num_groups=num_groups, order=order))
            before, stride = after, 1
    network = nn.Sequential(
        _convolution(in_channels, stem, kernel_size=3),
        *blocks,
        *_activation_and_norm(channels[-1], num_groups, order),
        *_classifier(channels[-1], num_classes),
    )
    network.apply(_initialise_wide)
    if weight_standardised:
        standardise(network)
    return network


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

    ``order="before"`` is the network of the paper: a norm before each activation, and a block's last activation after
    the sum. ``"after"`` puts activation, then norm, into the branch, and nothing follows the sum. ``stem="small"``
    keeps the size of images of about 32 × 32.
    """
    if validate.count(depth=depth) not in GROUP_NORM_DEPTHS:
        raise InvalidValue("depth", allowed="one of " + ", ".join(map(str, GROUP_NORM_DEPTHS)), given=depth)
    validate.one_of(NORM_ORDERS, order=order)
    channels, blocks = validate.count(stem_channels=stem_channels), []
    check_divides("num_groups", num_groups, of=channels)
    num_blocks, is_bottleneck = GROUP_NORM_DEPTHS[depth]
    for stage, num in enumerate(num_blocks):
        width = stem_channels * 2**stage
        sizes = ((width, 1), (width, 3), (EXPANSION * width, 1)) if is_bottleneck else ((width, 3), (width, 3))
        for index in range(num):
            stride = 2 if stage and not index else 1
            block = ResidualBlock(channels, sizes, stride=stride, num_groups=num_groups, order=order, is_original=True)
            blocks.append(block)
            channels = sizes[-1][0]
    network = nn.Sequential(
        *_stem(stem, _convolution, in_channels, stem_channels, *_activation_and_norm(stem_channels, num_groups, order)),
        *blocks,
        *_classifier(channels, num_classes),
    )
    network.apply(_initialise_group_norm)
    return network


def nf_resnet50(*, num_classes: int = 1000, in_channels: int = 3) -> nn.Sequential:
    """The NF-ResNet-50 of the papers."""
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
    if not isinstance(num_blocks, list | tuple) or not num_blocks:
        raise InvalidValue("num_blocks", allowed="how many blocks each stage has, as (3, 4, 6, 3)", given=num_blocks)
    channels, num_before, blocks = validate.count(stem_channels=stem_channels), 0, []
    for stage, num in enumerate(num_blocks):
        width = stem_channels * 2**stage
        for index in range(validate.count(num_blocks=num)):
            # The shortcut of a stage's first block resets the variance of the stream to one; each block adds its part.
            expected_std = math.sqrt(1 + (index or num_before) * BRANCH_STD**2)
            stride = 2 if stage and not index else 1
            blocks.append(Bottleneck(channels, width, stride=stride, expected_std=expected_std))
            channels = EXPANSION * width
        num_before = num
    return nn.Sequential(
        *_stem(stem, standardised_convolution, in_channels, stem_channels),
        *blocks,
        ScaledReLU(),
        *_classifier(channels, num_classes),
    )


class ResidualBlock(nn.Module):
    """Convolutions of these (channels, kernel sizes), each with its activation and norm, and a shortcut.

    The stride is that of the first convolution larger than one pixel. The shortcut is a convolution where shapes
    change. With ``is_original``, as in He et al. (2016), that has a norm too, and in the order "before" the last
    activation follows the sum.
    """

    def __init__(
        self,
        in_channels: int,
        sizes: tuple[tuple[int, int], ...],
        *,
        stride: int,
        num_groups: int | None,
        order: str,
        is_original: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, left = in_channels, stride
        for out_channels, kernel_size in sizes:
            here, left = (left, 1) if kernel_size > 1 else (1, left)
            layers.append(_convolution(channels, out_channels, kernel_size=kernel_size, stride=here))
            layers += _activation_and_norm(out_channels, num_groups, order)
            channels = out_channels
        self.last: nn.Module = layers.pop() if is_original and order == "before" else nn.Identity()
        self.residual = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if (in_channels, stride) != (channels, 1):
            self.shortcut = _convolution(in_channels, channels, kernel_size=1, stride=stride)
            if is_original and num_groups is not None:
                self.shortcut = nn.Sequential(self.shortcut, nn.GroupNorm(num_groups, channels))

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.last(torch.add(self.shortcut(images), self.residual(images)))
        return result


class ScaledReLU(nn.Module):
    """A ReLU that keeps variances, after dividing by the standard deviation that is expected of its input."""

    def __init__(self, *, expected_std: float = 1.0) -> None:
        super().__init__()
        self._factor = RELU_GAIN / expected_std

    def forward(self, values: Tensor) -> Tensor:
        return torch.relu(values) * self._factor


class Bottleneck(nn.Module):
    """Three standardised convolutions, the first and last of one pixel, whose sum with the stream a gain opens."""

    def __init__(self, in_channels: int, channels: int, *, stride: int, expected_std: float) -> None:
        super().__init__()
        out_channels = EXPANSION * channels
        self.activation = ScaledReLU(expected_std=expected_std)
        self.branch = nn.Sequential(
            standardised_convolution(in_channels, channels, kernel_size=1),
            ScaledReLU(),
            standardised_convolution(channels, channels, kernel_size=3, stride=stride),
            ScaledReLU(),
            standardised_convolution(channels, out_channels, kernel_size=1),
            Gain(),
        )
        self.shortcut: nn.Module | None = None
        if (in_channels, stride) != (out_channels, 1):
            self.shortcut = standardised_convolution(in_channels, out_channels, kernel_size=1)
            if stride > 1:
                pool = nn.AvgPool2d(stride, ceil_mode=True, count_include_pad=False)
                self.shortcut = nn.Sequential(pool, self.shortcut)

    def forward(self, stream: Tensor) -> Tensor:
        activated = self.activation(stream)
        kept = stream if self.shortcut is None else self.shortcut(activated)
        return torch.add(kept, self.branch(activated), alpha=BRANCH_STD)


def _initialise_wide(layer: nn.Module) -> None:
    """Weights of variance 1 / fan-in, biases of zero, as in both papers."""
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.trunc_normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _initialise_group_norm(layer: nn.Module) -> None:
    """Weights of variance 2 / fan-out, for ReLUs, as in the paper; the classifier's begin small, with no bias."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)


def _stem(
    stem: str, convolution: Callable[..., nn.Module], in_channels: int, out_channels: int, *activated: nn.Module
) -> list[nn.Module]:
    """Return a convolution, its activation and norm, and for large images a pool.

    ``"imagenet"`` is the stem of He et al. (2016): 7 × 7 pixels with a stride of 2, then the maximum of 3 × 3 with a
    stride of 2. ``"small"`` is 3 × 3 pixels, for images of about 32 × 32.
    """
    if validate.one_of(STEMS, stem=stem) == "small":
        return [convolution(in_channels, out_channels, kernel_size=3), *activated]
    pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return [convolution(in_channels, out_channels, kernel_size=7, stride=2), *activated, pool]


def _classifier(channels: int, num_classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]


def _activation_and_norm(num_channels: int, num_groups: int | None, order: str) -> list[nn.Module]:
    if num_groups is None:
        return [nn.ReLU()]
    norm = nn.GroupNorm(num_groups, num_channels)
    return [nn.ReLU(), norm] if order == "after" else [norm, nn.ReLU()]


def _convolution(in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)
