"""Left and right exchanged. Axes: M views, C channels, H rows, W columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lehr.data.augmentation.drawing import sometimes


@dataclass(frozen=True)
class HorizontalFlip:
    """Every second view, on average, is its mirror image. Not for images that can be read, such as digits."""

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
        return sometimes(images_MCHW.flip(-1), images_MCHW, probability=0.5, generator=generator)
