"""Records from a folder of images: one folder for each class, its name the name of the class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lehr import validate
from lehr.data.content import LARGEST
from lehr.data.decoding import MODES, MOST_BYTES, MOST_PIXELS, pixels_of
from lehr.data.file_list import class_names, images_below
from lehr.data.in_memory import InMemory
from lehr.errors import BadRecord, InvalidValue, StoreError
from lehr.files import whole_file

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class ImageFolder:
    """Records, and the names of their classes: the label of a record is the place of its class."""

    records: InMemory
    classes: tuple[str, ...]


def read(
    folder: Path, *, size: tuple[int, int] | None = None, channels: int = 3, at_most: int = LARGEST
) -> ImageFolder:
    """The images below ``folder`` as bytes of shape CHW, classes and files in the order of their names.

    All images must be of one size, unless ``size`` (height, width) says to which they are scaled. ``channels`` is 3
    for colour or 1 for grey. A file that is no image by its name is passed over; one that cannot be decoded raises
    ``BadRecord`` with its path.
    """
    if channels not in tuple(MODES):  # which a list is not either
        raise InvalidValue("channels", allowed="1 or 3", given=channels)
    checked = None if size is None else checked_size(*size)
    classes = class_names(folder)
    files = [(path, label) for label, name in enumerate(classes) for path in images_below(folder / name)]
    if not files:
        raise StoreError(f"cannot read {folder}: it has no images in folders named after their classes")
    images = _stacked([path for path, _ in files], size=checked, channels=channels, at_most=at_most)
    return ImageFolder(InMemory(images, torch.tensor([label for _, label in files])), classes)


def checked_size(height: object, width: object) -> tuple[int, int]:
    """The size that images are scaled to, with no more pixels than an image may have that is read."""
    size = validate.count(height=height), validate.count(width=width)
    if size[0] * size[1] > MOST_PIXELS:
        raise InvalidValue("size", allowed=f"of at most {MOST_PIXELS:,} pixels", given=f"{height} × {width}")
    return size


def _stacked(paths: Sequence[Path], *, size: tuple[int, int] | None, channels: int, at_most: int) -> Tensor:
    first = _decoded(paths[0], size=size, channels=channels)
    if len(paths) * first.numel() > at_most:
        raise StoreError(f"cannot hold {len(paths):,} images of {first.numel():,} bytes: more than {at_most:,} in all")
    images = torch.empty(len(paths), *first.shape, dtype=torch.uint8)
    for place, path in enumerate(paths):
        image = _decoded(path, size=size, channels=channels)
        if image.shape != first.shape:
            sizes = f"{tuple(image.shape[1:])}, and {paths[0]} of {tuple(first.shape[1:])}"
            raise BadRecord(path, reason=f"it is of the size {sizes}; give a size to scale them to (image_side)")
        images[place] = image
    return images


def _decoded(path: Path, *, size: tuple[int, int] | None, channels: int) -> Tensor:
    try:
        with whole_file.opened(path, at_most=MOST_BYTES) as file:
            return torch.from_numpy(pixels_of(file, channels=channels, scaled=lambda image: _scaled(image, size)))
    except Exception as error:  # a decoder of a hostile file can fail in any way
        raise BadRecord(path, reason=f"it cannot be decoded as an image ({error})") from error


def _scaled(image: Image.Image, size: tuple[int, int] | None) -> Image.Image:
    return image if size is None else image.resize((size[1], size[0]))
