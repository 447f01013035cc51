"""Inputs without targets, for a model to be asked about: npz and idx files, and single images."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lehr.data import idx
from lehr.errors import InvalidValue, StoreError

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
ARRAYS = ("inputs", "x", "images")
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_MODES = {1: "L", 3: "RGB"}


def read(path: Path, *, shape: tuple[int, ...], resize: bool = False) -> Tensor:
    """The inputs in a file, which begin with the record axis; an image is one record.

    ``shape`` is that of one record. Images of another size are scaled to it where ``resize`` says so.
    """
    if path.suffix.lower() in IMAGES:
        return _image(path, _of_images(shape), resize=resize)
    array = _npz(path) if path.suffix.lower() == ".npz" else torch.from_numpy(idx.read(path))
    # Files of grey images have no axis for the one channel.
    return array.unsqueeze(1) if shape[:1] == (1,) and tuple(array.shape[1:]) == shape[1:] else array


def _of_images(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[0] not in _MODES:
        raise InvalidValue("shape", allowed="that of images with 1 or 3 channels, where images are given", given=shape)
    return shape[0], shape[1], shape[2]


def _npz(path: Path) -> Tensor:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            held = [name for name in ARRAYS if name in arrays]
            if not held:
                raise StoreError(f"cannot read {path}: it holds none of the arrays {', '.join(ARRAYS)}")
            return torch.from_numpy(arrays[held[0]])
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def _image(path: Path, shape: tuple[int, int, int], *, resize: bool) -> Tensor:
    from PIL import Image

    channels, height, width = shape
    try:
        with Image.open(path, formats=_FORMATS) as image:
            converted = image.convert(_MODES[channels])
            if resize:
                converted = converted.resize((width, height))
            pixels = np.array(converted, dtype=np.uint8).reshape(converted.height, converted.width, channels)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StoreError(f"cannot read {path} as an image: {error}") from error
    if pixels.shape[:2] != (height, width):
        allowed = f"of {height} × {width} pixels, or scaled to that (--resize)"
        raise InvalidValue(str(path), allowed=allowed, given=f"{pixels.shape[0]} × {pixels.shape[1]}")
    return torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
