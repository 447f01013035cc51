"""Decoding, listing, folders in memory and streamed folders."""

from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lehr.data import image_folder
from lehr.data.decoding import DecoderPool, ListedFile, WorkerDied, decode, decode_listed
from lehr.data.image_folder import FileList, StreamedFolder, list_images, read_image_folder, stream_image_folder
from lehr.data.records import is_mostly_in, overlap
from lehr.data.split import split
from lehr.errors import BadRecord, InvalidValue, MissingExtra, StoreError
from lehr.privacy.rng import RunKey
from tests.data.picture_folders import replace_unseen, spoil, write

KEY = RunKey(bytes(32))
POOLS = {0: DecoderPool(0), 2: DecoderPool(2)}  # starting workers takes longer than most of these tests
every_pool = pytest.mark.parametrize("workers", POOLS)


def put(path: Path, pixels: np.ndarray) -> ListedFile:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    about = os.stat(path)
    return ListedFile(os.fsencode(path), about.st_size, about.st_mtime_ns)


def solid(*colour: int, size: tuple[int, int] = (2, 3)) -> np.ndarray:
    return np.full((*size, 3), colour, dtype=np.uint8)


# --- Decoding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, middle, size",
    [((4, 10), np.s_[:, 3:7], (4, 4)), ((10, 4), np.s_[3:7], (4, 4)), ((4, 16), np.s_[:, 4:12], (4, 8))],
)
def test_scaling_crops_the_centre(tmp_path: Path, shape: tuple[int, int], middle: slice, size: tuple[int, int]) -> None:
    pixels = np.zeros(shape, dtype=np.uint8)
    pixels[middle] = 200
    decoded = decode_listed(put(tmp_path / "a.png", pixels), size=size, channels=1)
    assert decoded is not None
    assert decoded.shape == (1, *size)
    assert (decoded == 200).all()


@pytest.mark.parametrize("side", [4, 9])
def test_a_square_is_scaled_as_by_pillow(tmp_path: Path, side: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    decoded = decode_listed(put(tmp_path / "a.png", pixels), size=(side, side), channels=3)
    expected = pixels if side == 9 else np.array(Image.fromarray(pixels).resize((4, 4)))
    assert decoded is not None
    assert np.array_equal(decoded.transpose(1, 2, 0), expected)


@pytest.mark.parametrize("content", [b"", b"words", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF"], ids=str)
def test_other_bytes_are_not_an_image(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    file = ListedFile(os.fsencode(path), len(content), path.stat().st_mtime_ns)
    assert decode_listed(file, size=(4, 4), channels=3) is None


@pytest.mark.parametrize("side", [9_000, 60_000])
def test_an_image_of_too_many_pixels_is_not_decoded(side: int) -> None:
    with pytest.raises((ValueError, Image.DecompressionBombError), match="pixels"):
        decode(BytesIO(b"P5 %d %d 255\n" % (side, side)), channels=3)


@every_pool
def test_a_file_that_changed_is_an_error_and_decoding_goes_on(tmp_path: Path, workers: int) -> None:
    file = put(tmp_path / "a.png", solid(1, 2, 3))

    def start(file: ListedFile) -> object:
        return POOLS[workers].start(file, size=(4, 4), channels=1)()

    for changed in ({"changed_at": file.changed_at - 1}, {"num_bytes": file.num_bytes - 1}, {"digest": bytes(16)}):
        with pytest.raises(OSError, match="has changed since it was listed"):
            start(file._replace(**changed))
    assert start(file) is not None
    (tmp_path / "a.png").unlink()
    with pytest.raises(OSError, match="No such file"):
        start(file)


@every_pool
def test_decoders_print_nothing_about_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str], workers: int) -> None:
    image = np.arange(3600, dtype=np.uint8).reshape(40, 30, 3)
    for name, compression, tag in (("packed", "tiff_lzw", None), ("plain", None, 277)):
        path = tmp_path / "a" / f"{name}.tif"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path, compression=compression)
        content = bytearray(path.read_bytes())
        if tag is None:
            content[8:200] = b"\xff" * 192  # libtiff complains about it to the descriptor
        else:
            start = content.index(struct.pack("<HH", tag, 3))
            content[start + 8 : start + 10] = struct.pack("<H", 16384)  # Pillow logs that these are too many
        path.write_bytes(content)
    decoders = DecoderPool(min(workers, 1))
    assert list(stream_image_folder(tmp_path, image_side=4, workers=decoders).not_images()) == [0, 1]
    decoders.close()
    assert capfd.readouterr() == ("", "")
    os.write(2, b"printed again")
    assert capfd.readouterr().err == "printed again"


# --- Worker processes -----------------------------------------------------------------------------------------------


def is_gone(pid: int, *, within: float = 0) -> bool:
    """Whether no such process runs; a zombie does not."""
    deadline = time.monotonic() + within
    while True:
        gc.collect()
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z" or time.monotonic() > deadline:
            return state == "Z"
        time.sleep(0.01)


def test_a_killed_worker_is_an_error_and_new_ones_are_started(tmp_path: Path) -> None:
    file, decoders = put(tmp_path / "a.png", solid(1, 2, 3)), DecoderPool(2)
    decoders.start(file, size=(4, 4), channels=1)()
    before = decoders.pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied):
        decoders.start(file, size=(4, 4), channels=1)()
    assert all(map(is_gone, before))
    assert decoders.start(file, size=(4, 4), channels=1)() is not None
    [pid, _] = decoders.pids()
    assert pid not in before
    del decoders
    assert is_gone(pid, within=30)


USES_WORKERS = """
import os, resource, sys, time
from pathlib import Path
import torch
from lehr.data.image_folder import stream_image_folder

records = stream_image_folder(Path(sys.argv[1]), image_side=128, workers=1)
parts = torch.split(torch.arange(len(records)), 20)
for _ in records.batches(parts[:10]):
    pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in records.batches(parts):
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, *records.decoders.pids(), flush=True)
time.sleep(600)
"""


def test_memory_does_not_grow_with_the_records_and_workers_end_with_a_killed_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", USES_WORKERS, str(write(tmp_path, 600, seed=3))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as hanging:
        assert hanging.stdout is not None
        grown, pid = map(int, hanging.stdout.readline().split())
        assert not is_gone(pid)
        hanging.kill()
    assert is_gone(pid, within=30)
    assert grown < 15 * 1024  # KiB; the decoded images have 28 MiB


@pytest.mark.parametrize("workers", [-1, 1.5, True, None])
def test_workers_are_counted(workers: object) -> None:
    with pytest.raises(InvalidValue, match="workers"):
        DecoderPool(workers)  # type: ignore[arg-type]


# --- Lists ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "dogs" / "b.png", solid(0, 0, 30))
    put(tmp_path / "cats" / "z.PNG", solid(10, 11, 12))
    put(tmp_path / "cats" / "below" / "a.bmp", solid(20, 21, 22))
    put(tmp_path / ".hidden" / "c.png", solid(1, 1, 1))
    (tmp_path / "cats" / "notes.txt").write_text("no image")
    (tmp_path / "empty").mkdir()
    return tmp_path


def names(files: FileList) -> list[str]:
    return [os.path.relpath(os.fsdecode(files.at(index).path), files.folder) for index in range(len(files))]


def test_files_are_in_the_order_of_classes_and_names(folder: Path) -> None:
    os.mkfifo(folder / "dogs" / "a.png")
    files = list_images(folder)
    assert files.classes == ("cats", "dogs", "empty")
    assert names(files) == ["cats/below/a.bmp", "cats/z.PNG", "dogs/b.png"]
    assert files.rows["label"].tolist() == [0, 0, 1]
    about = os.stat(folder / "dogs" / "b.png")
    assert files.at(2)[1:] == (about.st_size, about.st_mtime_ns, b"")


def test_names_that_are_not_text_are_kept(folder: Path) -> None:
    raw = os.fsencode(folder / "dogs") + b"/\xff\xfe.png"
    with open(raw, "wb"):
        pass
    assert list_images(folder).at(3).path == raw


def test_files_that_cannot_be_listed_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = folder / "cats" / "lost.png"
    link.symlink_to("nowhere.png")
    with pytest.raises(StoreError, match=r"lost\.png"):
        list_images(folder)
    link.unlink()
    monkeypatch.setattr(image_folder, "MOST_BYTES", 10)
    with pytest.raises(BadRecord, match=r"below/a\.bmp"):
        list_images(folder)


def whole(records: FileList | StreamedFolder) -> bytes:
    parts = records.identity() if isinstance(records, FileList) else records.identity("private")
    return b"|".join(bytes(part) for part in parts)


def test_the_identity_follows_names_sizes_and_times(folder: Path) -> None:
    found = [whole(list_images(folder))]
    assert found == [whole(list_images(folder))]
    path = folder / "dogs" / "b.png"
    for content, name, other_class in (
        (path.read_bytes(), "b.png", None),
        (b"longer than before", "b.png", None),
        (b"longer than before", "c.png", None),
        (b"longer than before", "c.png", "more"),
    ):
        path.unlink()
        path = folder / "dogs" / name
        path.write_bytes(content)
        os.utime(path, ns=(1, 1))
        (folder / (other_class or "empty")).mkdir(exist_ok=True)
        found.append(whole(list_images(folder)))
    assert len(set(found)) == 5


def test_the_identity_follows_the_content_of_files(folder: Path) -> None:
    before = whole(list_images(folder))
    replace_unseen(folder / "dogs" / "b.png")
    assert whole(list_images(folder)) != before


def test_equal_files_have_equal_digests_and_a_file_is_read_once(folder: Path) -> None:
    (folder / "dogs" / "c.png").write_bytes((folder / "dogs" / "b.png").read_bytes())
    files = list_images(folder)
    first = list(files.digests(np.array([3, 0, 2])))
    assert first[0] == first[2] != first[1]
    for name in ("b.png", "c.png"):
        (folder / "dogs" / name).unlink()
    assert list(files.digests(np.array([0, 3]))) == [first[1], first[0]]
    (folder / "cats" / "z.PNG").unlink()
    with pytest.raises(StoreError, match=f"cannot read {folder}: No such file"):
        list(files.digests(np.array([1])))


# --- Folders in memory ----------------------------------------------------------------------------------------------


def test_images_are_bytes_by_channel(folder: Path) -> None:
    records, classes = read_image_folder(folder)
    assert classes == ("cats", "dogs", "empty")
    assert records.targets.tolist() == [0, 0, 1]
    assert (records.inputs.shape, records.inputs.dtype) == ((3, 3, 2, 3), torch.uint8)
    assert records.inputs[:, :, 0, 0].tolist() == [[20, 21, 22], [10, 11, 12], [0, 0, 30]]
    assert read_image_folder(folder, channels=1).records.inputs.shape == (3, 1, 2, 3)


def test_images_of_several_sizes_need_a_size(folder: Path) -> None:
    put(folder / "dogs" / "other.png", solid(1, 2, 3, size=(5, 5)))
    with pytest.raises(BadRecord, match=r"other\.png"):
        read_image_folder(folder)
    inputs = read_image_folder(folder, size=(4, 6)).records.inputs
    assert inputs.shape == (4, 3, 4, 6)
    assert inputs[3, :, 1, 1].tolist() == [1, 2, 3]


def test_a_broken_image_is_named(folder: Path) -> None:
    path = folder / "dogs" / "b.png"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(BadRecord, match=r"dogs/b\.png"):
        read_image_folder(folder)


def test_folders_that_cannot_be_read_are_refused(folder: Path, tmp_path: Path) -> None:
    for path, limit in ((tmp_path / "empty", 99), (tmp_path / "nowhere", 99), (tmp_path / "a\0b", 99), (folder, 50)):
        with pytest.raises(StoreError):
            read_image_folder(path, at_most=limit)


@pytest.mark.parametrize("wrong", [{"channels": 2}, {"image_side": 0}, {"image_side": 10**5}])
def test_other_forms_of_images_are_refused(folder: Path, wrong: dict[str, int]) -> None:
    form = {"channels": 1, "image_side": 8} | wrong
    with pytest.raises(InvalidValue):
        stream_image_folder(folder, **form)
    with pytest.raises(InvalidValue):
        read_image_folder(folder, size=(form["image_side"],) * 2, channels=form["channels"])


def test_without_pillow_the_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"lehr\[images\]"):
        read_image_folder(folder)
    with pytest.raises(MissingExtra, match=r"lehr\[images\]"):
        stream_image_folder(folder, image_side=8)


# --- Streamed folders -----------------------------------------------------------------------------------------------


def streamed(pictures: Path, *, workers: int = 0, side: int = 8) -> StreamedFolder:
    return stream_image_folder(pictures, image_side=side, channels=1, workers=POOLS[workers])


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write(tmp_path / "pictures", 60, seed=1)


@every_pool
@pytest.mark.parametrize("size", [1, 7, 60])
def test_batches_are_those_of_the_folder_in_memory(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, workers: int, size: int
) -> None:
    expected = read_image_folder(pictures, channels=1)
    monkeypatch.chdir(pictures.parent)
    records = streamed(Path(pictures.name), workers=workers)
    monkeypatch.chdir("/")
    indices = torch.tensor([3, 3, *range(59, -1, -1)])
    batches = list(records.batches(torch.split(indices, size)))
    inputs, targets, is_image = map(torch.cat, zip(*batches, strict=True))
    assert torch.equal(inputs, expected.records.inputs[indices])
    assert torch.equal(targets, expected.records.targets[indices])
    assert is_image.all()
    assert [len(mask) for *_, mask in batches] == [len(part) for part in torch.split(indices, size)]
    assert (records.classes, len(records)) == (expected.classes, 60)


@every_pool
def test_a_file_that_is_not_an_image_is_black_and_marked_and_changes_no_other(pictures: Path, workers: int) -> None:
    before, _ = streamed(pictures).batch(torch.arange(60))
    streamed(pictures).check(num_classes=3)
    bad = spoil(pictures)
    records = streamed(pictures, workers=workers)
    [(inputs, targets, usable)] = records.batches([torch.arange(61)])
    index = int((~usable).nonzero())
    assert records.files.at(index).path == os.fsencode(bad)
    assert not inputs[index].any()
    assert targets[index] == 1
    assert torch.equal(inputs[usable], before)
    assert list(records.not_images()) == [index]
    with pytest.raises(BadRecord, match=f"{bad}"):
        records.check(num_classes=3)
    with pytest.raises(InvalidValue, match="num_classes"):
        records.check(num_classes=4)


def test_the_printed_form_shows_no_number_of_records(pictures: Path) -> None:
    assert repr(streamed(pictures)) == f"StreamedFolder({pictures}, inputs torch.uint8 (1, 8, 8))"


def test_a_killed_worker_names_the_folder_and_the_next_batch_has_new_ones(pictures: Path) -> None:
    records = stream_image_folder(pictures, image_side=8, channels=1, workers=1)
    expected, _ = records.batch(torch.arange(60))
    os.kill(records.decoders.pids()[0], signal.SIGKILL)
    with pytest.raises(StoreError, match=f"cannot read {pictures}"):
        records.batch(torch.arange(60))
    assert torch.equal(records.batch(torch.arange(60))[0], expected)
    records.decoders.close()


@every_pool
def test_a_file_that_changes_stops_the_run_and_is_not_named(pictures: Path, workers: int) -> None:
    records = streamed(pictures, workers=workers)
    path = pictures / "class0" / "00000.jpg"
    hashed = whole(records)
    records.batch(torch.arange(60))
    for change in (lambda: replace_unseen(path), lambda: os.utime(path, ns=(1, 1)), path.unlink):
        change()  # type: ignore[no-untyped-call]
        with pytest.raises(StoreError, match=f"cannot read {pictures} as it was listed") as refused:
            records.batch(torch.arange(60))
        assert "00000" not in str(refused.value)
    assert whole(streamed(pictures)) != hashed


def test_shared_files_are_found_whatever_their_names(pictures: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", 30, seed=2)
    assert overlap(streamed(pictures), streamed(other)) == ()
    (other / "class2" / "zzz.png").write_bytes((pictures / "class0" / "00003.png").read_bytes())
    assert overlap(streamed(pictures), streamed(other)) == (30,)
    assert not is_mostly_in(streamed(other), streamed(pictures))
    assert is_mostly_in(streamed(pictures), streamed(pictures))
    in_memory = read_image_folder(pictures, channels=1).records
    assert not is_mostly_in(in_memory, streamed(pictures))
    with pytest.raises(InvalidValue):
        overlap(streamed(pictures), in_memory)


def test_a_split_moves_no_file_for_another_and_equal_files_together(pictures: Path) -> None:
    def parts() -> dict[bytes, int]:
        records = streamed(pictures)
        found = split(records, key=KEY, test_fraction=0.5).parts
        return {os.path.basename(records.files.at(index).path): int(part) for index, part in enumerate(found)}

    before = parts()
    assert set(before.values()) == {0, 2}
    (pictures / "class0" / "twin.png").write_bytes((pictures / "class1" / "00001.png").read_bytes())
    (pictures / "class0" / "00003.png").unlink()
    removed = before.pop(b"00003.png")
    assert removed in (0, 2)
    assert parts() == {**before, b"twin.png": before[b"00001.png"]}


def test_the_identity_has_the_size_of_images_and_the_indices(pictures: Path) -> None:
    records = streamed(pictures)
    others = [streamed(pictures, side=5), records.at(torch.arange(59)), records.at(torch.arange(60).flip(0))]
    assert whole(records) == whole(streamed(pictures, workers=2))
    assert len({whole(records), *map(whole, others)}) == 4
