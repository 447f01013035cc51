"""A small residual network for natural images of about 32 × 32 pixels.

It is shaped like the ResNet-9 of Klause et al. (2022), "Differentially Private Training of Residual Networks with Scale
Normalisation": every convolution is followed by its activation and then by a group norm without weights of its own. A
fixed convolution in front whitens small patches. Pools come before activations, which then have a quarter of the work.

>>> sum(weight.numel() for weight in resnet9().parameters())
620298
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr import validate
from lehr.data.random_images import draw
from lehr.errors import InvalidValue
from lehr.networks.activations import Activation
from lehr.networks.layers import AveragedViews, check_divides

PATCH = 3  # pixels on each side
SMALLEST_VARIANCE = 0.02  # of patches, over the mean variance of all directions
RANDOM_IMAGES, RANDOM_SIDE, SEED = 200, 32, 5  # of each kind


class PatchWhitening(nn.Module):
    """A fixed convolution whose outputs are uncorrelated, with variance one, on random images.

    Neighbouring pixels are nearly alike, so that a first layer sees little but brightness. These filters are the
    principal components of 3 × 3 patches, without the ninth of them that varies least.
    """

    weight: Tensor

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        filters = _whitening(validate.count(in_channels=in_channels))
        self.register_buffer("weight", torch.tensor(filters, dtype=torch.float32))

    def forward(self, images: Tensor) -> Tensor:
        return functional.conv2d(images, self.weight, padding=PATCH // 2)


@cache
def _whitening(in_channels: int) -> np.ndarray:
    """Filters of shape (outputs, channels, rows, columns)."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        generator = torch.Generator("cpu").manual_seed(SEED)
        images = torch.cat(
            [
                draw(kind, RANDOM_IMAGES, side=RANDOM_SIDE, channels=in_channels, generator=generator)
                for kind in ("dead-leaves", "oriented")
            ]
        )
        images = (images - images.mean()) / images.std()
        patches = functional.unfold(images, PATCH).movedim(1, -1).flatten(0, 1).double().numpy()
    variances, directions = np.linalg.eigh(np.cov(patches.T))
    scaled = directions / np.sqrt(variances + SMALLEST_VARIANCE * variances.mean())
    filters: np.ndarray = scaled[:, len(variances) // 9 :].T.reshape(-1, in_channels, PATCH, PATCH)  # smallest first
    return filters


class Residual(nn.Sequential):
    """Adds its input to its output, and normalises the sum."""

    def __init__(self, *layers: nn.Module, norm: nn.Module) -> None:
        super().__init__(*layers)
        self.norm = norm

    def forward(self, images: Tensor) -> Tensor:
        values = images
        for name, layer in self.named_children():
            values = images + values if name == "norm" else values
            values = layer(values)
        return values


class Quarters(nn.Module):
    """The mean over each quarter of an image. Where the sides are even, this is an ordinary pool, which is faster."""

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        if height % 2 or width % 2:
            return functional.adaptive_avg_pool2d(images, 2)
        return functional.avg_pool2d(images, (height // 2, width // 2))


def resnet9(
    *,
    in_channels: int = 3,
    num_classes: int = 10,
    widths: Sequence[int] = (32, 64, 128),
    num_groups: int = 8,
    activation: Activation = nn.ReLU,
    mirrored: bool = False,
    shift: int = 0,
) -> nn.Sequential:
    """Eight convolutions in two plain and two residual parts, and one linear layer; for sides of at least 16 pixels.

    ``mirrored`` averages the predictions for an image and its mirror image, for records that may be mirrored; ``shift``
    those for an image and for it moved by so many pixels.
    """
    if not isinstance(widths, list | tuple) or len(widths) != 3:
        raise InvalidValue("widths", allowed="the channels of three stages, as (32, 64, 128)", given=widths)
    first, second, third = (validate.count(widths=width) for width in widths)
    for width in widths:
        check_divides("num_groups", num_groups, of=width)

    def norm(width: int) -> nn.GroupNorm:
        return nn.GroupNorm(num_groups, width, affine=False)

    def block(before: int, after: int, *, pool: bool = False) -> nn.Sequential:
        convolution = nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)
        nn.init.trunc_normal_(convolution.weight, std=convolution.weight[0].numel() ** -0.5)
        return nn.Sequential(convolution, *[nn.MaxPool2d(kernel_size=2)] * pool, activation(), norm(after))

    def residual(width: int) -> Residual:
        return Residual(block(width, width), block(width, width), norm=norm(width))

    whitening = PatchWhitening(in_channels)
    return AveragedViews(
        OrderedDict(
            whitening=whitening,
            first=block(len(whitening.weight), first),
            second=block(first, second, pool=True),
            residual=residual(second),
            third=block(second, third, pool=True),
            fourth=block(third, third, pool=True),
            last=residual(third),
            pool=Quarters(),
            flatten=nn.Flatten(),
            head=nn.Linear(4 * third, num_classes),
        ),
        mirrored=mirrored,
        shift=shift,
    )
