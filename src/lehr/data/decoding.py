"""From an image file to bytes of shape CHW. Nothing here needs torch: worker processes load this and little else."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

# Formats that Pillow decodes itself; for some others it starts a program.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
MODES = {1: "L", 3: "RGB"}
MOST_PIXELS = 64 * 1024**2
_PIXELS_A_BYTE, _FEW_PIXELS = 10_000, 1024**2  # no format of ours holds more in a byte, but for images of one colour
MOST_BYTES = 1024**3
DIGEST_BYTES = 16
_STANDARD_ERROR = 2
_ONE_AT_A_TIME = threading.Lock()  # two that silence the process would not give back what they found
HAS_CHANGED = "a file has changed since it was listed"

Pixels = npt.NDArray[np.uint8]
Scaled = Callable[["Image.Image"], "Image.Image"]


class Listed(NamedTuple):
    """A file as it was when it was listed."""

    path: bytes
    num_bytes: int
    changed_at: int  # nanoseconds
    digest: bytes = b""  # of its bytes, where they were hashed


def pixels_of(file: IO[bytes], *, channels: int, scaled: Scaled) -> Pixels:
    """The image, scaled, as bytes of shape CHW. A decoder of a hostile file can fail in any way."""
    from PIL import Image

    most_pixels = min(MOST_PIXELS, max(_FEW_PIXELS, _PIXELS_A_BYTE * file.seek(0, os.SEEK_END)))
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the metadata of one file or another
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > most_pixels:
                raise ValueError(f"{width} × {height} pixels, more than {most_pixels:,} for a file of its size")
            converted = scaled(image.convert(MODES[channels]))
    rows = np.array(converted, dtype=np.uint8).reshape(converted.height, converted.width, channels)
    return rows.transpose(2, 0, 1)


def centre_square(image: Image.Image, side: int) -> Image.Image:
    """The largest square in the middle, scaled to a side of so many pixels."""
    width, height = image.size
    short = min(width, height)
    left, top = (width - short) // 2, (height - short) // 2
    return image.resize((side, side), box=(left, top, left + short, top + short))


def pixels_of_listed(file: Listed, *, side: int, channels: int) -> Pixels | None:
    """The centre square of the image in a file; nothing where its bytes are no image.

    Which of the two it is follows from the bytes alone. A file that cannot be read, or that is another one than was
    listed, raises ``OSError``: that says nothing about a record, and may be otherwise a moment later.
    """
    content = _content(file)
    try:
        with _silence():
            return pixels_of(BytesIO(content), channels=channels, scaled=lambda image: centre_square(image, side))
    except MemoryError:
        raise
    except Exception:  # whatever a decoder makes of bytes that are no image
        return None


def _content(file: Listed) -> bytes:
    # Were it a pipe by now, opening it would wait for a writer.
    with open(file.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        about = os.fstat(opened.fileno())
        content = opened.read(file.num_bytes + 1)
    if (about.st_size, about.st_mtime_ns, len(content)) != (file.num_bytes, file.changed_at, file.num_bytes):
        raise OSError(errno.ESTALE, HAS_CHANGED, os.fsdecode(file.path))
    if file.digest and hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest() != file.digest:
        raise OSError(errno.ESTALE, HAS_CHANGED, os.fsdecode(file.path))
    return content


@contextmanager
def _silence() -> Iterator[None]:
    """Let nobody hear what decoders print and log about a file: it would be told when its record was drawn.

    Libraries in C write to the descriptor of standard error themselves; for that moment it leads nowhere.
    """
    logger, unheard = logging.getLogger("PIL"), logging.NullHandler()
    with _ONE_AT_A_TIME, ExitStack() as after:
        after.callback(setattr, logger, "propagate", logger.propagate)
        after.callback(logger.removeHandler, unheard)
        logger.addHandler(unheard)
        logger.propagate = False
        with suppress(OSError):  # there is no standard error, and so nobody to hear
            kept = os.dup(_STANDARD_ERROR)
            after.callback(os.close, kept)
            after.callback(os.dup2, kept, _STANDARD_ERROR)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            after.callback(os.close, nowhere)
            os.dup2(nowhere, _STANDARD_ERROR)
        yield


def versions() -> str:
    """Everything that decodes: with another version of it, an image may have other bytes."""
    import PIL
    from PIL import features

    libraries = {name: features.version(name) for name in ("jpg", "libjpeg_turbo", "zlib", "webp", "libtiff")}
    return f"Pillow {PIL.__version__}, " + ", ".join(f"{name} {version}" for name, version in libraries.items())
