"""Colours: brightness, contrast, saturation and hue moved, or all colour taken away.

Images with three channels are red, green and blue. Any other number of channels has no colour: brightness and contrast
move, contrast about the mean of all channels, and the rest leaves the image as it is.
Axes: M views, C channels, H rows, W columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lehr import validate
from lehr.data.augmentation.drawing import sometimes, uniforms
from lehr.errors import InvalidValue

# How bright the eye finds red, green and blue (Recommendation ITU-R BT.601).
_BRIGHTNESS = (0.299, 0.587, 0.114)
_SMALLEST_SPREAD = 1e-30


@dataclass(frozen=True, kw_only=True)
class ColourJitter:
    """Brightness, contrast, saturation and hue, moved in this order, in a share ``probability`` of the views.

    The first three are each multiplied by a number drawn from 1 minus to 1 plus their strength, and at least 0. The hue
    is turned by up to its strength of the whole circle, either way.
    """

    brightness: float = 0.8
    contrast: float = 0.8
    saturation: float = 0.8
    hue: float = 0.2
    probability: float = 0.8

    def __post_init__(self) -> None:
        validate.non_negative(brightness=self.brightness)
        validate.non_negative(contrast=self.contrast)
        validate.non_negative(saturation=self.saturation)
        validate.probability(probability=self.probability)
        if not validate.non_negative(hue=self.hue) <= 0.5:
            raise InvalidValue("hue", allowed="a number in [0, 0.5]", given=self.hue)

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
        def factor(strength: float) -> Tensor:
            return uniforms(max(0.0, 1 - strength), 1 + strength, like_M=images_MCHW, generator=generator)

        moved = (images_MCHW * factor(self.brightness)).clamp_(0, 1)
        moved = _away_from(_grey(moved).mean(dim=(1, 2, 3), keepdim=True), moved, factor(self.contrast))
        saturation = factor(self.saturation)
        turn = uniforms(-self.hue, self.hue, like_M=images_MCHW, generator=generator)
        if _has_colour(images_MCHW):
            moved = _turned(_away_from(_grey(moved), moved, saturation), turn)
        return sometimes(moved, images_MCHW, probability=self.probability, generator=generator)


@dataclass(frozen=True, kw_only=True)
class Grayscale:
    """All colour taken away, in a share ``probability`` of the views."""

    probability: float = 0.2

    def __post_init__(self) -> None:
        validate.probability(probability=self.probability)

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
        grey = _grey(images_MCHW).expand_as(images_MCHW) if _has_colour(images_MCHW) else images_MCHW
        return sometimes(grey, images_MCHW, probability=self.probability, generator=generator)


def _has_colour(images_MCHW: Tensor) -> bool:  # noqa: N803
    return images_MCHW.shape[1] == len(_BRIGHTNESS)


def _grey(images_MCHW: Tensor) -> Tensor:  # noqa: N803
    """What is left of the images without colour, in one channel."""
    if not _has_colour(images_MCHW):
        return images_MCHW.mean(dim=1, keepdim=True)
    red, green, blue = (images_MCHW[:, channel : channel + 1] for channel in range(3))
    return _BRIGHTNESS[0] * red + _BRIGHTNESS[1] * green + _BRIGHTNESS[2] * blue


def _away_from(base: Tensor, images_MCHW: Tensor, factor: Tensor) -> Tensor:  # noqa: N803
    """The distance of the images from a base multiplied, and kept within the range of images."""
    return torch.lerp(base, images_MCHW, factor).clamp_(0, 1)


def _turned(images_MCHW: Tensor, turn: Tensor) -> Tensor:  # noqa: N803
    """The hue turned by a share of the circle, with the largest and the smallest channel as they were."""
    red, green, blue = images_MCHW.unbind(1)
    most, least = images_MCHW.amax(1), images_MCHW.amin(1)
    spread = most - least
    # Without spread all differences are zero, and so is their quotient by anything.
    per_spread = spread.clamp_min(_SMALLEST_SPREAD).reciprocal_()
    between = torch.where(most == green, (blue - red).mul_(per_spread).add_(2), (red - green).mul_(per_spread).add_(4))
    sixths = torch.where(most == red, (green - blue).mul_(per_spread), between).add_(6 * turn[:, 0])
    turned = torch.empty_like(images_MCHW)
    # A channel falls from the largest value to the smallest and back as the hue goes round, each at its own place.
    for channel, start in zip(turned.unbind(1), (5, 3, 1), strict=True):
        fall = (sixths + start).remainder_(6).sub_(2).abs_().neg_().add_(2).clamp_(0, 1)
        torch.addcmul(most, spread, fall, value=-1, out=channel)
    return turned.clamp_(0, 1)
