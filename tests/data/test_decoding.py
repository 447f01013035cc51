from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lehr.data.decoding import (
    DecodeJob,
    DecoderPool,
    ListedFile,
    WorkerDied,
    decode,
    decode_listed,
    pack_request,
)
from lehr.data.image_folder import FileList, list_images
from lehr.errors import InvalidValue
from tests.data.picture_folders import spoil, write


def listed(path: Path) -> ListedFile:
    about = os.stat(path)
    return ListedFile(os.fsencode(path), about.st_size, about.st_mtime_ns)


def put(path: Path, pixels: np.ndarray) -> ListedFile:
    Image.fromarray(pixels).save(path)
    return listed(path)


@pytest.mark.parametrize("shape", [(4, 10), (10, 4)])
def test_what_sticks_out_of_the_middle_is_cut_off(tmp_path: Path, shape: tuple[int, int]) -> None:
    pixels = np.zeros(shape, dtype=np.uint8)
    middle = np.s_[3:7] if shape[0] > shape[1] else np.s_[:, 3:7]
    pixels[middle] = 200
    found = decode_listed(put(tmp_path / "a.png", pixels), side=4, channels=1)
    assert found is not None
    assert (found == 200).all()


@pytest.mark.parametrize("side", [4, 9])
def test_a_square_is_scaled_as_pillow_scales_and_one_of_the_right_side_comes_back_as_it_is(
    tmp_path: Path, side: int
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    found = decode_listed(put(tmp_path / "a.png", pixels), side=side, channels=3)
    expected = pixels if side == 9 else np.array(Image.fromarray(pixels).resize((4, 4)))
    assert found is not None
    assert np.array_equal(found.transpose(1, 2, 0), expected)


@pytest.mark.parametrize(
    "content", [b"", b"words", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF"], ids=["empty", "text", "cut", "program"]
)
def test_bytes_that_are_no_image_are_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    assert decode_listed(listed(path), side=4, channels=3) is None


def test_a_file_that_is_gone_or_another_one_is_an_error_and_no_black_image(tmp_path: Path) -> None:
    file = put(tmp_path / "a.png", np.zeros((4, 4), dtype=np.uint8))
    with pytest.raises(OSError, match="has changed since it was listed"):
        decode_listed(file._replace(changed_at=file.changed_at - 1), side=4, channels=1)
    with pytest.raises(OSError, match="has changed since it was listed"):
        decode_listed(file._replace(num_bytes=file.num_bytes - 1), side=4, channels=1)
    (tmp_path / "a.png").unlink()
    with pytest.raises(FileNotFoundError):
        decode_listed(file, side=4, channels=1)


def test_a_small_file_that_unfolds_to_a_huge_image_is_not_unfolded() -> None:
    whole = BytesIO()
    Image.new("1", (9000, 9000)).save(whole, "png")
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="9000 × 9000 pixels"):
            decode(whole, channels=3)
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_every_file_has_its_answer_and_the_process_ends_with_its_input(tmp_path: Path) -> None:
    good = put(tmp_path / "good.png", np.full((2, 2), 7, dtype=np.uint8))
    (tmp_path / "bad.png").write_bytes(b"no image")
    bad = listed(tmp_path / "bad.png")
    gone = ListedFile(os.fsencode(tmp_path / "gone.png"), 3, 4)
    question = pack_request([good, gone, bad], side=2, channels=1) + pack_request([good], side=1, channels=3)
    ended = subprocess.run(
        [sys.executable, "-m", "lehr.data.decoding"],
        input=question,
        capture_output=True,
        timeout=60,
        check=True,
        env=ENVIRONMENT,
    )
    assert ended.stdout == b"[0, 2, -1]\n" + bytes([7] * 4) + b"[0]\n" + bytes([7] * 3)  # 2: no such file
    assert ended.stderr == b""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FileList:
    folder = write(tmp_path_factory.mktemp("pictures"), 20, seed=1)
    spoil(folder)
    return list_images(folder)


@pytest.fixture(scope="module")
def two() -> Iterator[DecoderPool]:
    made = DecoderPool(2)
    yield made
    made.close()


def job(files: FileList, *places: int) -> DecodeJob:
    return DecodeJob(
        files=[files.at(place) for place in places],
        pixels=np.zeros((len(places), 3, 4, 4), np.uint8),
        is_image=np.zeros(len(places), np.bool_),
    )


def is_gone(pid: int) -> bool:
    """Whether no such process runs; one that has ended and that nobody has asked about yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_same_comes_out_whatever_the_number_of_workers(files: FileList, two: DecoderPool) -> None:
    here, there = (job(files, *range(len(files))) for _ in range(2))
    DecoderPool(0).start(here)()
    two.start(there)()
    assert np.array_equal(here.pixels, there.pixels)
    assert np.array_equal(here.is_image, there.is_image)
    assert here.is_image.sum() == 20
    assert len(set(map(bytes, here.pixels))) == 21  # each picture is another one, and what is none is black


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_changed_is_an_error_and_the_workers_go_on(files: FileList, two: DecoderPool, workers: int) -> None:
    decoders = two if workers else DecoderPool(0)
    good = job(files, 0, 1)
    other = DecodeJob(files=[files.at(0)._replace(changed_at=5)], pixels=good.pixels[:1], is_image=good.is_image[:1])
    with pytest.raises(OSError, match="a file has changed since it was listed"):
        decoders.start(other)()
    decoders.start(good)()
    assert good.is_image.all()


def test_a_killed_worker_is_an_error_and_new_ones_are_started(files: FileList) -> None:
    decoders = DecoderPool(2)
    decoders.start(job(files, 0))()
    before = decoders.pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        decoders.start(job(files, 0))()
    assert all(map(is_gone, before))
    again = job(files, 0)
    decoders.start(again)()
    assert again.is_image.all()
    assert not set(before) & set(decoders.pids())
    decoders.close()
    assert decoders.pids() == ()


def test_workers_end_with_whoever_has_them(files: FileList) -> None:
    decoders = DecoderPool(1)
    decoders.start(job(files, 0))()
    [pid] = decoders.pids()
    del decoders
    assert _is_gone_soon(pid)


HANGING = """
import os, sys, time
import numpy as np
from lehr.data.decoding import DecodeJob, DecoderPool, ListedFile

about, decoders = os.stat(sys.argv[1]), DecoderPool(2)
file = ListedFile(os.fsencode(sys.argv[1]), about.st_size, about.st_mtime_ns)
pixels, is_image = np.zeros((1, 3, 4, 4), np.uint8), np.zeros(1, np.bool_)
decoders.start(DecodeJob(files=[file], pixels=pixels, is_image=is_image))()
assert is_image.all()
print(*decoders.pids(), flush=True)
time.sleep(600)
"""


def test_workers_do_not_outlive_a_process_that_is_killed(files: FileList) -> None:
    command = [sys.executable, "-c", HANGING, os.fsdecode(files.at(0).path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as hanging:
        assert hanging.stdout is not None
        pids = [int(pid) for pid in hanging.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(map(is_gone, pids))
        hanging.kill()
    assert all(map(_is_gone_soon, pids))


def _is_gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while not is_gone(pid) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return is_gone(pid)


@pytest.mark.parametrize("workers", [-1, 1.5, True, None])
def test_workers_are_counted(workers: object) -> None:
    with pytest.raises(InvalidValue, match="workers must be"):
        DecoderPool(workers)  # type: ignore[arg-type]


def test_files_are_found_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: DecoderPool) -> None:
    two.start(job(list_images(write(tmp_path / "here", 3, seed=2)), 0))()
    monkeypatch.chdir(tmp_path)
    relative = list_images(Path("here"))
    monkeypatch.chdir(tmp_path / "here")
    one = job(relative, 0)
    two.start(one)()
    assert one.is_image.all()


@pytest.mark.parametrize("workers", [0, 1])
def test_nobody_hears_which_files_are_no_images(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    (tmp_path / "a").mkdir()
    image = Image.fromarray(np.arange(3600, dtype=np.uint8).reshape(40, 30, 3))
    for name, compression, tag in (("packed", "tiff_lzw", None), ("plain", None, 277)):
        image.save(tmp_path / f"a/{name}.tif", compression=compression)
        content = bytearray((tmp_path / f"a/{name}.tif").read_bytes())
        if tag is None:
            content[8:200] = b"\xff" * 192  # libtiff complains about it to the descriptor
        else:
            place = content.index(struct.pack("<HH", tag, 3))
            content[place + 8 : place + 10] = struct.pack("<H", 16384)  # Pillow logs that these are too many
        (tmp_path / f"a/{name}.tif").write_bytes(content)
    decoders, asked = DecoderPool(workers), job(list_images(tmp_path), 0, 1)
    decoders.start(asked)()
    decoders.close()
    assert not asked.is_image.any()
    assert capfd.readouterr() == ("", "")
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"
