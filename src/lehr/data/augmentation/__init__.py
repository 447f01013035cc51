"""Augmentation: views of a record, made on the device, of which the gradients are averaged before they are clipped.

- ``families``: augmentations by name, and how operations are put together
- ``cropping``, ``flipping``, ``colour``, ``blurring``: the operations
- ``drawing``: what is drawn for them
"""

from __future__ import annotations

from lehr.data.augmentation.blurring import GaussianBlur
from lehr.data.augmentation.colour import ColourJitter, Grayscale
from lehr.data.augmentation.cropping import PadAndCrop, RandomResizedCrop
from lehr.data.augmentation.families import FAMILIES, Augmentation, Operation, named
from lehr.data.augmentation.flipping import HorizontalFlip

__all__ = [
    "FAMILIES",
    "Augmentation",
    "ColourJitter",
    "GaussianBlur",
    "Grayscale",
    "HorizontalFlip",
    "Operation",
    "PadAndCrop",
    "RandomResizedCrop",
    "named",
]
