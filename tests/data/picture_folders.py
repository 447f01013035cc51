"""Folders of tiny pictures, written in no time."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 3


def write(folder: Path, count: int, *, seed: int, side: int = 8, channels: int = 1) -> Path:
    """So many pictures of three classes, PNG and JPEG in turns, all different; the brightest rows tell the class."""
    made = np.random.default_rng(seed)
    for label in range(CLASSES):
        (folder / f"class{label}").mkdir(parents=True, exist_ok=True)
    for number in range(count):
        label = number % CLASSES
        pixels = made.integers(0, 128, (side, side, channels), dtype=np.uint8)
        pixels[label * side // CLASSES : (label + 1) * side // CLASSES] += 100
        suffix = "png" if number % 2 else "jpg"
        Image.fromarray(pixels.squeeze()).save(folder / f"class{label}" / f"{number:05}.{suffix}", quality=95)
    return folder


def spoil(folder: Path, *, name: str = "class1/00100.png") -> Path:
    """A file among them that is no picture."""
    (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    return folder / name


def replace_unseen(path: Path) -> None:
    """Other bytes in a file, of which its size and its times say nothing."""
    about, content = path.stat(), path.read_bytes()
    path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
