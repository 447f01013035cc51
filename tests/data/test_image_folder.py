from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lehr.data import image_folder
from lehr.data.decoding import DecoderPool
from lehr.data.image_folder import FileList, StreamedFolder, list_images
from lehr.data.records import is_mostly_in, overlap
from lehr.data.split import split
from lehr.errors import BadRecord, InvalidValue, MissingExtra, StoreError
from lehr.privacy.rng import RunKey
from tests.data.picture_folders import replace_unseen, spoil, write


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
    read = image_folder.read_image_folder(folder)
    assert read.classes == ("cats", "dogs")
    assert read.records.targets.tolist() == [0, 0, 1]
    assert read.records.inputs.shape == (3, 3, 2, 3)
    assert read.records.inputs.dtype == torch.uint8
    assert read.records.inputs[:, :, 0, 0].tolist() == [[20, 21, 22], [10, 11, 12], [0, 0, 30]]


def test_images_become_grey_where_one_channel_is_asked_for(folder: Path) -> None:
    assert image_folder.read_image_folder(folder, channels=1).records.inputs.shape == (3, 1, 2, 3)
    with pytest.raises(InvalidValue, match="channels must be 1 or 3"):
        image_folder.read_image_folder(folder, channels=4)


def test_images_of_several_sizes_need_a_size(folder: Path) -> None:
    other = put(folder / "dogs" / "other.png", (1, 2, 3), size=(5, 5))
    with pytest.raises(BadRecord, match=r"other\.png .*size"):
        image_folder.read_image_folder(folder)
    read = image_folder.read_image_folder(folder, size=(4, 6))
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
        image_folder.read_image_folder(folder)


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
        image_folder.read_image_folder(folder)


def test_more_images_than_the_memory_are_refused_before_they_are_read(folder: Path) -> None:
    with pytest.raises(StoreError, match="cannot hold 3 images of 18 bytes: more than 50"):
        image_folder.read_image_folder(folder, at_most=50)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="cannot read"):
            image_folder.read_image_folder(folder)


@pytest.fixture
def files_folder(tmp_path: Path) -> Path:
    for name in ("dogs/b.png", "cats/z.JPEG", "cats/below/a.bmp", "cats/notes.txt", ".hidden/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "empty").mkdir()
    return tmp_path


def names(files: FileList) -> list[str]:
    return [os.fsdecode(files.at(place).path.removeprefix(files.root + b"/")) for place in range(len(files))]


def test_files_are_in_the_order_of_classes_and_names(files_folder: Path) -> None:
    files = list_images(files_folder)
    assert files.classes == ("cats", "dogs", "empty")
    assert names(files) == ["cats/below/a.bmp", "cats/z.JPEG", "dogs/b.png"]
    assert files.labels.tolist() == [0, 0, 1]
    assert files.at(2).path == os.fsencode(files_folder / "dogs" / "b.png")
    assert files.at(2).num_bytes == len("dogs/b.png")
    assert files.at(2).changed_at == os.stat(files_folder / "dogs" / "b.png").st_mtime_ns


def test_a_pipe_with_the_name_of_an_image_is_passed_over(files_folder: Path) -> None:
    os.mkfifo(files_folder / "dogs" / "a.png")
    assert names(list_images(files_folder))[-1] == "dogs/b.png"


def test_a_link_that_leads_nowhere_is_named(files_folder: Path) -> None:
    link = files_folder / list_images(files_folder).classes[0] / "lost.png"
    link.symlink_to("nowhere.png")
    with pytest.raises(StoreError, match=r"lost\.png: No such file"):
        list_images(files_folder)


def test_names_that_are_no_text_are_kept_as_they_are(files_folder: Path) -> None:
    raw = os.fsencode(files_folder / "dogs") + b"/\xff\xfe.png"
    with open(raw, "wb"):
        pass
    assert list_images(files_folder).at(3).path == raw


def digest(files: FileList) -> bytes:
    return b"|".join(bytes(part) for part in files.identity())


def test_the_identity_follows_names_sizes_and_times(files_folder: Path) -> None:
    before = digest(list_images(files_folder))
    assert digest(list_images(files_folder)) == before
    path = files_folder / "dogs" / "b.png"
    os.utime(path, ns=(1, 1))
    touched = digest(list_images(files_folder))
    path.write_bytes(b"longer than before")
    os.utime(path, ns=(1, 1))
    longer = digest(list_images(files_folder))
    path.rename(files_folder / "dogs" / "c.png")
    renamed = digest(list_images(files_folder))
    (files_folder / "more").mkdir()
    assert len({before, touched, longer, renamed, digest(list_images(files_folder))}) == 5


def test_the_identity_follows_what_is_in_a_file_that_looks_as_before(files_folder: Path) -> None:
    before = digest(list_images(files_folder))
    replace_unseen(files_folder / "dogs" / "b.png")
    assert digest(list_images(files_folder)) != before


def test_equal_files_have_equal_digests_and_a_file_is_read_once(files_folder: Path) -> None:
    (files_folder / "dogs" / "c.png").write_bytes((files_folder / "dogs" / "b.png").read_bytes())
    files = list_images(files_folder)
    first = list(files.digests(np.array([3, 0, 2])))
    assert first[0] == first[2] != first[1]
    (files_folder / "dogs" / "c.png").unlink()
    assert list(files.digests(np.array([0, 3]))) == [first[1], first[0]]


def test_a_file_that_is_gone_has_no_digest(files_folder: Path) -> None:
    files = list_images(files_folder)
    (files_folder / "dogs" / "b.png").unlink()
    with pytest.raises(StoreError, match=f"cannot read {files_folder}: No such file"):
        list(files.digests(np.array([2])))


def test_a_file_that_no_memory_holds_is_named_when_it_is_listed(
    files_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "MOST_BYTES", 10)
    with pytest.raises(BadRecord, match=r"below/a\.bmp .*16 bytes, more than 10"):
        list_images(files_folder)


def test_a_listed_file_takes_few_bytes(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(2000):
        (tmp_path / "class" / f"{number:020}.png").touch()
    tracemalloc.start()
    try:
        files = list_images(tmp_path)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(files) == 2000
    assert kept < 100 * len(files)  # a name of 30 bytes and 28 of numbers; a Path alone has some 200


KEY = RunKey(bytes(32))
TWO = DecoderPool(2)  # for all tests of this file: starting some takes longer than most of these


def streamed(pictures: Path, *, workers: int = 0, side: int = 8) -> StreamedFolder:
    found = image_folder.stream_image_folder(pictures, image_side=side, channels=1, workers=0)
    return image_folder.stream_files(found.files, image_side=side, channels=1, decoders=TWO) if workers else found


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write(tmp_path / "pictures", 60, seed=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_records_are_those_of_the_folder_read_at_once(pictures: Path, workers: int) -> None:
    held = image_folder.read_image_folder(pictures, channels=1)
    records = streamed(pictures, workers=workers)
    places = torch.tensor([50, 3, 3, 59, 0])
    inputs, targets = records.batch(places)
    assert torch.equal(inputs, held.records.inputs[places])
    assert torch.equal(targets, held.records.targets[places])
    assert (records.classes, len(records)) == (held.classes, 60)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 7, 60])
def test_batches_are_the_parts_in_their_order(pictures: Path, workers: int, size: int) -> None:
    records = streamed(pictures, workers=workers)
    parts = torch.split(torch.arange(60).flip(0), size)
    found = list(records.batches(parts))
    inputs, targets = records.batch(torch.arange(60).flip(0))
    assert [len(mask) for _, _, mask in found] == [len(part) for part in parts]
    assert torch.equal(torch.cat([part for part, _, _ in found]), inputs)
    assert torch.equal(torch.cat([part for _, part, _ in found]), targets)
    assert all(mask.all() for _, _, mask in found)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_no_image_is_black_and_marked_and_changes_no_other(pictures: Path, workers: int) -> None:
    before, _ = streamed(pictures).batch(torch.arange(60))
    bad = spoil(pictures)
    records = streamed(pictures, workers=workers)
    [(inputs, targets, usable)] = records.batches([torch.arange(61)])
    place = int((~usable).nonzero())
    assert records.files.at(place).path == os.fsencode(bad)
    assert not inputs[place].any()
    assert targets[place] == 1
    assert torch.equal(inputs[usable], before)
    assert list(records.not_images()) == [place]


def test_some_records_of_the_folder_are_tried_before_a_run(pictures: Path) -> None:
    streamed(pictures).check(num_classes=3)
    bad = spoil(pictures)
    with pytest.raises(BadRecord, match=rf"{bad} cannot be used: .* lehr data check {pictures}"):
        streamed(pictures).check(num_classes=3)


def test_neither_records_nor_their_number_are_shown(pictures: Path) -> None:
    assert repr(streamed(pictures)) == f"StreamedFolder({pictures}, inputs torch.uint8 (1, 8, 8))"


def test_a_killed_worker_names_the_folder_and_the_next_batch_has_new_ones(pictures: Path) -> None:
    records = image_folder.stream_image_folder(pictures, image_side=8, channels=1, workers=1)
    expected, _ = records.batch(torch.arange(60))
    os.kill(records.decoders.pids()[0], signal.SIGKILL)
    with pytest.raises(StoreError, match=f"cannot read {pictures}: a worker process that decodes its images ended"):
        records.batch(torch.arange(60))
    assert torch.equal(records.batch(torch.arange(60))[0], expected)
    records.decoders.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_changes_meanwhile_stops_it_without_being_named(pictures: Path, workers: int) -> None:
    records = streamed(pictures, workers=workers)
    path = pictures / "class0" / "00000.jpg"
    os.utime(path, ns=(1, 1))
    with pytest.raises(StoreError, match=f"cannot read {pictures} as it was listed") as told:
        records.batch(torch.arange(60))
    path.unlink()
    with pytest.raises(StoreError, match="No such file") as told_gone:
        records.batch(torch.arange(60))
    assert "00000" not in str(told.value) + str(told_gone.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_another_one_of_the_same_size_and_time_stops_it_once_it_was_hashed(
    pictures: Path, workers: int
) -> None:
    records = streamed(pictures, workers=workers)
    hashed = identity(records)
    records.batch(torch.arange(60))
    replace_unseen(pictures / "class0" / "00000.jpg")
    with pytest.raises(StoreError, match=f"cannot read {pictures} as it was listed"):
        records.batch(torch.arange(60))
    assert identity(streamed(pictures)) != hashed


def test_shared_files_are_found_whatever_they_are_called(pictures: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", 30, seed=2)
    assert overlap(streamed(pictures), streamed(other)) == ()
    copied = other / "class2" / "zzz.png"
    copied.write_bytes((pictures / "class0" / "00003.png").read_bytes())
    assert overlap(streamed(pictures), streamed(other)) == (30,)
    assert not is_mostly_in(streamed(other), streamed(pictures))
    assert is_mostly_in(streamed(pictures), streamed(pictures))


def test_files_and_held_records_are_not_compared(pictures: Path) -> None:
    held = image_folder.read_image_folder(pictures, channels=1).records
    assert not is_mostly_in(held, streamed(pictures))
    with pytest.raises(InvalidValue, match="image files, as the first are"):
        overlap(streamed(pictures), held)


def test_a_split_moves_no_file_for_another_and_equal_files_together(pictures: Path) -> None:
    before = streamed(pictures)
    parts = split(before, key=KEY, test_fraction=0.5).parts
    part_of = {os.path.basename(before.files.at(place).path): int(part) for place, part in enumerate(parts)}
    assert set(part_of.values()) == {0, 2}
    (pictures / "class0" / "twin.png").write_bytes((pictures / "class1" / "00001.png").read_bytes())
    (pictures / "class0" / "00003.png").unlink()
    after = streamed(pictures)
    found = split(after, key=KEY, test_fraction=0.5).parts
    for place, part in enumerate(found):
        name = os.path.basename(after.files.at(place).path)
        assert int(part) == part_of[b"00001.png" if name == b"twin.png" else name]


def identity(records: StreamedFolder) -> bytes:
    return b"|".join(bytes(part) for part in records.identity("private"))


def test_the_identity_says_how_images_are_cut_and_which_records_these_are(pictures: Path) -> None:
    records = streamed(pictures)
    others = [
        streamed(pictures, side=5),
        records.at(torch.arange(59)),
        records.at(torch.arange(60).flip(0)),
    ]
    assert identity(records) == identity(streamed(pictures, workers=2))
    assert len({identity(records), *map(identity, others)}) == 4


def test_images_are_of_one_or_three_channels(pictures: Path) -> None:
    with pytest.raises(InvalidValue, match="channels must be 1 or 3"):
        image_folder.stream_image_folder(pictures, image_side=8, channels=2)
    with pytest.raises(InvalidValue, match="image_side must be"):
        image_folder.stream_image_folder(pictures, image_side=0)


GROWTH = """
import resource, sys
from pathlib import Path
import torch
from lehr.data.image_folder import stream_image_folder

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

records = stream_image_folder(Path(sys.argv[1]), image_side=128, workers=1)
parts = torch.split(torch.arange(len(records)), 20)
for _ in records.batches(parts[:10]):
    pass
before = peak()
for _ in records.batches(parts):
    pass
print(peak() - before)
"""


def test_the_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    pictures = write(tmp_path, 900, seed=3)
    ran = subprocess.run([sys.executable, "-c", GROWTH, pictures], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 15  # MiB; the decoded images have 42


def test_without_pillow_the_error_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for read in (image_folder.read_image_folder, lambda path: image_folder.stream_image_folder(path, image_side=8)):
        with pytest.raises(MissingExtra, match=r"lehr\[images\]"):
            read(folder)
