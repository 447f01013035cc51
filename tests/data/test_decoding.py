from __future__ import annotations

import os
import tracemalloc
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lehr.data.decoding import Listed, centre_square, pixels_of, pixels_of_listed, versions


def listed(path: Path) -> Listed:
    about = os.stat(path)
    return Listed(os.fsencode(path), about.st_size, about.st_mtime_ns)


def put(path: Path, pixels: np.ndarray) -> Listed:
    Image.fromarray(pixels).save(path)
    return listed(path)


def test_a_square_of_the_right_side_comes_back_as_it_is(tmp_path: Path) -> None:
    pixels = np.arange(75, dtype=np.uint8).reshape(5, 5, 3)
    found = pixels_of_listed(put(tmp_path / "a.png", pixels), side=5, channels=3)
    assert found is not None
    assert np.array_equal(found, pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("shape", [(4, 10), (10, 4)])
def test_what_sticks_out_of_the_middle_is_cut_off(tmp_path: Path, shape: tuple[int, int]) -> None:
    pixels = np.zeros(shape, dtype=np.uint8)
    pixels[:, 3:7] = 200
    if shape[0] > shape[1]:
        pixels = np.zeros(shape, dtype=np.uint8)
        pixels[3:7] = 200
    found = pixels_of_listed(put(tmp_path / "a.png", pixels), side=4, channels=1)
    assert found is not None
    assert (found == 200).all()


def test_a_square_is_scaled_as_pillow_scales(tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8))
    assert np.array_equal(np.array(centre_square(image, 4)), np.array(image.resize((4, 4))))


@pytest.mark.parametrize(
    "content", [b"", b"words", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF"], ids=["empty", "text", "cut", "program"]
)
def test_bytes_that_are_no_image_are_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    assert pixels_of_listed(listed(path), side=4, channels=3) is None


def test_half_an_image_is_none(tmp_path: Path) -> None:
    put(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8))
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:2000])
    assert pixels_of_listed(listed(tmp_path / "b.png"), side=4, channels=3) is None


def test_a_file_that_is_gone_or_another_one_is_an_error_and_no_black_image(tmp_path: Path) -> None:
    file = put(tmp_path / "a.png", np.zeros((4, 4), dtype=np.uint8))
    with pytest.raises(OSError, match="has changed since it was listed"):
        pixels_of_listed(file._replace(changed_at=file.changed_at - 1), side=4, channels=1)
    with pytest.raises(OSError, match="has changed since it was listed"):
        pixels_of_listed(file._replace(num_bytes=file.num_bytes - 1), side=4, channels=1)
    (tmp_path / "a.png").unlink()
    with pytest.raises(FileNotFoundError):
        pixels_of_listed(file, side=4, channels=1)


def test_a_small_file_that_unfolds_to_a_huge_image_is_not_unfolded() -> None:
    whole = BytesIO()
    Image.new("1", (9000, 9000)).save(whole, "png")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="9000 × 9000 pixels"):
            pixels_of(whole, channels=3, scaled=lambda image: image)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_the_versions_name_what_decodes() -> None:
    assert versions().startswith("Pillow 1")
    assert "libjpeg_turbo" in versions()
