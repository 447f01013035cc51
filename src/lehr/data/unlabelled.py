"""Inputs without targets, for a model to be asked about: npz and idx files, and single images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lehr.data import decoding, idx, npz
from lehr.data.image_folder import checked_size
from lehr.errors import InvalidValue, StoreError
from lehr.files import whole_file

if TYPE_CHECKING:
    from PIL import Image


def read(path: Path, *, shape: tuple[int, ...], resize: bool = False) -> Tensor:
    """The inputs in a file, which begin with the record axis; an image is one record.

    ``shape`` is that of one record. Images of another size are scaled to it where ``resize`` says so.
    """
    if path.suffix.lower() in decoding.SUFFIXES:
        return _image(path, _of_images(shape), resize=resize)
    array = npz.read_inputs(path) if path.suffix.lower() == ".npz" else torch.from_numpy(idx.read(path))
    # Files of grey images have no axis for the one channel.
    return array.unsqueeze(1) if shape[:1] == (1,) and tuple(array.shape[1:]) == shape[1:] else array


def _of_images(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[0] not in decoding.MODES:
        raise InvalidValue("shape", allowed="that of images with 1 or 3 channels, where images are given", given=shape)
    return shape[0], *checked_size(shape[1], shape[2])


def _image(path: Path, shape: tuple[int, int, int], *, resize: bool) -> Tensor:
    channels, height, width = shape

    def scaled(image: Image.Image) -> Image.Image:
        return image.resize((width, height)) if resize else image

    try:
        with whole_file.opened(path, at_most=decoding.MOST_BYTES) as file:
            pixels = decoding.pixels_of(file, channels=channels, scaled=scaled)
    except StoreError:
        raise
    except Exception as error:  # a decoder of a hostile file can fail in any way
        raise StoreError(f"cannot read {path} as an image: {error}") from error
    if pixels.shape[1:] != (height, width):
        allowed = f"of {height} × {width} pixels, or scaled to that (--resize)"
        raise InvalidValue(str(path), allowed=allowed, given=f"{pixels.shape[1]} × {pixels.shape[2]}")
    return torch.from_numpy(pixels).unsqueeze(0)
