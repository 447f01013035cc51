from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lehr.data.unlabelled import read
from lehr.errors import InvalidValue, StoreError

GREY = (1, 4, 6)


@pytest.fixture
def image() -> Tensor:
    return torch.arange(24, dtype=torch.uint8).reshape(4, 6)


def test_a_grey_image_is_one_record_of_bytes(tmp_path: Path, image: Tensor) -> None:
    Image.fromarray(image.numpy()).save(tmp_path / "one.png")
    assert read(tmp_path / "one.png", shape=GREY).equal(image[None, None])


def test_a_colour_image_has_its_channels_first(tmp_path: Path) -> None:
    pixels = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    Image.fromarray(pixels).save(tmp_path / "one.PNG")
    assert read(tmp_path / "one.PNG", shape=(3, 4, 6)).equal(torch.from_numpy(pixels).permute(2, 0, 1)[None])


def test_an_image_of_another_size_is_scaled_only_where_that_is_asked(tmp_path: Path) -> None:
    Image.new("RGB", (32, 24)).save(tmp_path / "large.jpg")
    with pytest.raises(InvalidValue, match="4 × 6 pixels"):
        read(tmp_path / "large.jpg", shape=GREY)
    assert read(tmp_path / "large.jpg", shape=GREY, resize=True).shape == (1, *GREY)


@pytest.mark.parametrize("name", ["inputs", "x", "images"])
def test_arrays_of_npz_files_are_found_by_name_with_or_without_a_channel(
    tmp_path: Path, image: Tensor, name: str
) -> None:
    np.savez(tmp_path / "one.npz", **{name: image.numpy()[None]})  # type: ignore[arg-type]
    assert read(tmp_path / "one.npz", shape=GREY).equal(image[None, None])
    np.savez(tmp_path / "one.npz", **{name: image.numpy()[None, None]})  # type: ignore[arg-type]
    assert read(tmp_path / "one.npz", shape=GREY).equal(image[None, None])


def test_idx_files_are_read(tmp_path: Path, image: Tensor) -> None:
    head = b"\0\0\x08\x03" + b"".join(length.to_bytes(4, "big") for length in (1, 4, 6))
    (tmp_path / "one-idx3-ubyte").write_bytes(head + image.numpy().tobytes())
    assert read(tmp_path / "one-idx3-ubyte", shape=GREY).equal(image[None, None])


@pytest.mark.parametrize("name", ["no.png", "no.npz", "no-idx3-ubyte"])
@pytest.mark.parametrize("content", [None, b"", b"nothing of the kind", b"PK\x03\x04 and then"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=name):
        read(tmp_path / name, shape=GREY)


def test_arrays_of_python_objects_and_other_names_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", inputs=np.array([{}], dtype=object))
    np.savez(tmp_path / "other.npz", pictures=np.zeros(3))
    for name in ("objects.npz", "other.npz"):
        with pytest.raises(StoreError, match=name):
            read(tmp_path / name, shape=GREY)


def test_an_image_is_no_record_of_a_model_that_takes_none(tmp_path: Path) -> None:
    Image.new("L", (6, 4)).save(tmp_path / "one.png")
    with pytest.raises(InvalidValue, match="shape"):
        read(tmp_path / "one.png", shape=(24,))
