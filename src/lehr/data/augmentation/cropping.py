"""Crops: the image moved a little, or a part of it in full size. Axes: M views, C channels, H rows, W columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lehr import validate
from lehr.data.augmentation.drawing import a_range, places, uniforms
from lehr.errors import InvalidValue

_MODES = {"reflect": "reflect", "zero": "constant"}


@dataclass(frozen=True, kw_only=True)
class PadAndCrop:
    """A border is added and a window of the old size is cut out at a place drawn uniformly.

    The border is ``padding_fraction`` of the side, rounded to pixels: 1/8 is the customary 4 pixels of 32. It mirrors
    the image, or is black.
    """

    padding_fraction: float = 1 / 8
    mode: str = "reflect"

    def __post_init__(self) -> None:
        validate.one_of(_MODES, mode=self.mode)
        if not 0 <= validate.non_negative(padding_fraction=self.padding_fraction) <= 0.5:
            raise InvalidValue("padding_fraction", allowed="a number in [0, 0.5]", given=self.padding_fraction)

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
        height, width = images_MCHW.shape[-2:]
        rows, columns = round(self.padding_fraction * height), round(self.padding_fraction * width)
        tops_M = places(2 * rows + 1, like_M=images_MCHW, generator=generator)  # noqa: N806
        lefts_M = places(2 * columns + 1, like_M=images_MCHW, generator=generator)  # noqa: N806
        padded = functional.pad(images_MCHW, (columns, columns, rows, rows), mode=_MODES[self.mode])
        # Every window there is, as a view without copies, of which one is taken for each image.
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(len(padded), device=padded.device), :, tops_M, lefts_M]


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A part of the image, enlarged to full size by bilinear interpolation.

    Its area is a share of the image drawn uniformly from ``area``, and its width over its height is drawn from
    ``aspect_ratio``, uniformly in the logarithm. A side that would be longer than the image's is as long as it.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", a_range(area=self.area))
        object.__setattr__(self, "aspect_ratio", a_range(aspect_ratio=self.aspect_ratio))
        if not self.area[1] <= 1:
            raise InvalidValue("area", allowed="shares of the image, at most 1", given=self.area)

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
        height, width = images_MCHW.shape[-2:]
        parts_M = self._sides(images_MCHW, generator)  # noqa: N806
        steps_M = [_positions(part_M, images_MCHW, generator) for part_M in parts_M]  # noqa: N806
        grid_MHW2 = torch.stack(  # noqa: N806
            (
                _coordinates(width, *steps_M[1], images_MCHW)[:, None, :].expand(-1, height, -1),
                _coordinates(height, *steps_M[0], images_MCHW)[:, :, None].expand(-1, -1, width),
            ),
            dim=-1,
        )
        cropped = functional.grid_sample(images_MCHW, grid_MHW2, padding_mode="border", align_corners=False)
        return cropped.clamp_(0, 1)

    def _sides(self, images_MCHW: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # noqa: N803
        """The height and the width of each part, over those of the image."""
        height, width = images_MCHW.shape[-2:]
        logarithms = math.log(self.aspect_ratio[0]), math.log(self.aspect_ratio[1])
        area_M = uniforms(*self.area, like_M=images_MCHW, generator=generator).flatten()  # noqa: N806
        ratio_M = uniforms(*logarithms, like_M=images_MCHW, generator=generator).flatten().exp()  # noqa: N806
        # The ratio is one of pixels, and the image need not be square.
        shares_M = ratio_M * height / width  # noqa: N806
        return (area_M / shares_M).sqrt().clamp(max=1), (area_M * shares_M).sqrt().clamp(max=1)


def _positions(part_M: Tensor, images_MCHW: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # noqa: N803
    """Each part's length and centre along one axis, where the image reaches from -1 to 1."""
    shift_M = uniforms(-1.0, 1.0, like_M=images_MCHW, generator=generator).flatten()  # noqa: N806
    return part_M, shift_M * (1 - part_M)


def _coordinates(count: int, part_M: Tensor, centre_M: Tensor, like: Tensor) -> Tensor:  # noqa: N803
    """Where the pixels of each part are taken from along one axis, centres of pixels being what is counted."""
    pixels = (2 * torch.arange(count, device=like.device, dtype=like.dtype) + 1) / count - 1
    return centre_M[:, None] + part_M[:, None] * pixels
