from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image

from lehr.data import image_folder
from lehr.errors import BadRecord, InvalidValue, StoreError


def put(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (3, 2)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "dogs" / "b.png", (0, 0, 30))
    put(tmp_path / "cats" / "z.png", (10, 11, 12))
    put(tmp_path / "cats" / "below" / "a.bmp", (20, 21, 22))
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    put(tmp_path / ".hidden" / "c.png", (1, 1, 1))
    return tmp_path


def test_classes_are_folders_in_order_and_images_are_bytes_by_channel(folder: Path) -> None:
    read = image_folder.read(folder)
    assert read.classes == ("cats", "dogs")
    assert read.records.targets.tolist() == [0, 0, 1]
    assert read.records.inputs.shape == (3, 3, 2, 3)
    assert read.records.inputs.dtype == torch.uint8
    assert read.records.inputs[:, :, 0, 0].tolist() == [[20, 21, 22], [10, 11, 12], [0, 0, 30]]


def test_images_become_grey_where_one_channel_is_asked_for(folder: Path) -> None:
    assert image_folder.read(folder, channels=1).records.inputs.shape == (3, 1, 2, 3)
    with pytest.raises(InvalidValue, match="channels must be 1 or 3"):
        image_folder.read(folder, channels=4)


def test_images_of_several_sizes_need_a_size(folder: Path) -> None:
    other = put(folder / "dogs" / "other.png", (1, 2, 3), size=(5, 5))
    with pytest.raises(BadRecord, match=r"other\.png .*size"):
        image_folder.read(folder)
    read = image_folder.read(folder, size=(4, 6))
    assert read.records.inputs.shape == (4, 3, 4, 6)
    assert read.records.inputs[3, :, 1, 1].tolist() == [1, 2, 3]
    other.unlink()


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"%!PS-Adobe-3.0 EPSF"]
)
def test_a_broken_image_is_named(folder: Path, damage: object) -> None:
    path = folder / "dogs" / "b.png"
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadRecord, match=r"dogs/b\.png cannot be used: it cannot be decoded"):
        image_folder.read(folder)


@pytest.mark.parametrize("side", [9_000, 11_000, 60_000])
def test_a_small_file_that_unfolds_to_a_huge_image_is_refused(folder: Path, side: int) -> None:
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )
    (folder / "dogs" / "bomb.png").write_bytes(whole)
    with pytest.raises(BadRecord, match=r"bomb\.png"):
        image_folder.read(folder)


def test_more_images_than_the_memory_are_refused_before_they_are_read(folder: Path) -> None:
    with pytest.raises(StoreError, match="cannot hold 3 images of 18 bytes: more than 50"):
        image_folder.read(folder, at_most=50)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="cannot read"):
            image_folder.read(folder)
