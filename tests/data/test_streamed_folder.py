from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lehr.data import image_folder, streamed_folder
from lehr.data.decoders import Decoders
from lehr.data.overlap import is_mostly_in, overlap
from lehr.data.split import split
from lehr.data.streamed_folder import StreamedFolder
from lehr.errors import BadRecord, InvalidValue, StoreError
from lehr.rng import RunKey
from tests.data.picture_folders import replace_unseen, spoil, write

KEY = RunKey(bytes(32))
TWO = Decoders(2)  # for all tests of this file: starting some takes longer than most of these
NO_PLACES = torch.zeros(0, dtype=torch.int64)


def streamed(folder: Path, *, workers: int = 0, side: int = 8) -> StreamedFolder:
    found = streamed_folder.read(folder, image_side=side, channels=1, workers=0)
    return streamed_folder.among(found.files, image_side=side, channels=1, decoders=TWO) if workers else found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "pictures", 60, seed=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_records_are_those_of_the_folder_read_at_once(folder: Path, workers: int) -> None:
    held = image_folder.read(folder, channels=1)
    records = streamed(folder, workers=workers)
    places = torch.tensor([50, 3, 3, 59, 0])
    inputs, targets = records.batch(places)
    assert torch.equal(inputs, held.records.inputs[places])
    assert torch.equal(targets, held.records.targets[places])
    assert (records.classes, len(records)) == (held.classes, 60)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [1, 7, 60])
def test_batches_are_the_parts_in_their_order(folder: Path, workers: int, size: int) -> None:
    records = streamed(folder, workers=workers)
    parts = torch.split(torch.arange(60).flip(0), size)
    found = list(records.batches(parts))
    inputs, targets = records.batch(torch.arange(60).flip(0))
    assert [len(mask) for _, _, mask in found] == [len(part) for part in parts]
    assert torch.equal(torch.cat([part for part, _, _ in found]), inputs)
    assert torch.equal(torch.cat([part for _, part, _ in found]), targets)
    assert all(mask.all() for _, _, mask in found)


def test_no_places_are_an_empty_batch_of_the_same_shape(folder: Path) -> None:
    inputs, targets = streamed(folder, side=5).batch(NO_PLACES)
    assert (inputs.shape, inputs.dtype) == ((0, 1, 5, 5), torch.uint8)
    assert (targets.shape, targets.dtype) == ((0,), torch.int64)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_no_image_is_black_and_marked_and_changes_no_other(folder: Path, workers: int) -> None:
    before, _ = streamed(folder).batch(torch.arange(60))
    bad = spoil(folder)
    records = streamed(folder, workers=workers)
    [(inputs, targets, usable)] = records.batches([torch.arange(61)])
    place = int((~usable).nonzero())
    assert records.files.at(place).path == os.fsencode(bad)
    assert not inputs[place].any()
    assert targets[place] == 1
    assert torch.equal(inputs[usable], before)
    assert list(records.not_images()) == [place]


def test_some_records_of_the_folder_are_tried_before_a_run(folder: Path) -> None:
    streamed(folder).check(num_classes=3)
    bad = spoil(folder)
    with pytest.raises(BadRecord, match=rf"{bad} cannot be used: it is no image; lehr data check {folder}"):
        streamed(folder).check(num_classes=3)


def test_classes_are_the_folders_and_no_other_number_of_them(folder: Path) -> None:
    with pytest.raises(InvalidValue, match="num_classes must be the number of folders"):
        streamed(folder).check(num_classes=4)


def test_some_of_the_records_keep_their_inputs_and_targets(folder: Path) -> None:
    records = streamed(folder)
    some = records.at(torch.tensor([30, 2, 7])).at(torch.tensor([2, 0]))
    assert torch.equal(some.batch(torch.tensor([0, 1]))[0], records.batch(torch.tensor([7, 30]))[0])
    assert len(records.spread(10)) == 10
    assert len(records.spread(100)) == 60


def test_targets_go_to_the_device_and_inputs_wait(folder: Path) -> None:
    inputs, targets = streamed(folder).to("meta").batch(torch.tensor([1]))
    assert (inputs.device.type, targets.device.type) == ("cpu", "meta")
    assert streamed(folder).targets_to("meta").device.type == "meta"


def test_neither_records_nor_their_number_are_shown(folder: Path) -> None:
    assert repr(streamed(folder)) == f"StreamedFolder({folder}, inputs torch.uint8 (1, 8, 8))"


def test_a_killed_worker_names_the_folder_and_the_next_batch_has_new_ones(folder: Path) -> None:
    records = streamed_folder.read(folder, image_side=8, channels=1, workers=1)
    expected, _ = records.batch(torch.arange(60))
    os.kill(records.decoders.pids()[0], signal.SIGKILL)
    with pytest.raises(StoreError, match=f"cannot read {folder}: a worker process that decodes its images ended"):
        records.batch(torch.arange(60))
    assert torch.equal(records.batch(torch.arange(60))[0], expected)
    records.decoders.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_changes_meanwhile_stops_it_without_being_named(folder: Path, workers: int) -> None:
    records = streamed(folder, workers=workers)
    path = folder / "class0" / "00000.jpg"
    os.utime(path, ns=(1, 1))
    with pytest.raises(StoreError, match=f"cannot read {folder} as it was listed") as told:
        records.batch(torch.arange(60))
    path.unlink()
    with pytest.raises(StoreError, match="No such file") as told_gone:
        records.batch(torch.arange(60))
    assert "00000" not in str(told.value) + str(told_gone.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_is_another_one_of_the_same_size_and_time_stops_it_once_it_was_hashed(
    folder: Path, workers: int
) -> None:
    records = streamed(folder, workers=workers)
    hashed = identity(records)
    records.batch(torch.arange(60))
    replace_unseen(folder / "class0" / "00000.jpg")
    with pytest.raises(StoreError, match=f"cannot read {folder} as it was listed"):
        records.batch(torch.arange(60))
    assert identity(streamed(folder)) != hashed


def test_shared_files_are_found_whatever_they_are_called(folder: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", 30, seed=2)
    assert overlap(streamed(folder), streamed(other)) == ()
    copied = other / "class2" / "zzz.png"
    copied.write_bytes((folder / "class0" / "00003.png").read_bytes())
    assert overlap(streamed(folder), streamed(other)) == (30,)
    assert not is_mostly_in(streamed(other), streamed(folder))
    assert is_mostly_in(streamed(folder), streamed(folder))


def test_files_and_held_records_are_not_compared(folder: Path) -> None:
    held = image_folder.read(folder, channels=1).records
    assert not is_mostly_in(held, streamed(folder))
    with pytest.raises(InvalidValue, match="image files, as the first are"):
        overlap(streamed(folder), held)


def test_a_split_moves_no_file_for_another_and_equal_files_together(folder: Path) -> None:
    before = streamed(folder)
    parts = split(before, key=KEY, test_fraction=0.5).parts
    part_of = {before.files.name(place): int(part) for place, part in enumerate(parts)}
    assert set(part_of.values()) == {0, 2}
    (folder / "class0" / "twin.png").write_bytes((folder / "class1" / "00001.png").read_bytes())
    (folder / "class0" / "00003.png").unlink()
    after = streamed(folder)
    found = split(after, key=KEY, test_fraction=0.5).parts
    for place, part in enumerate(found):
        name = after.files.name(place)
        assert int(part) == part_of[b"class1/00001.png" if name == b"class0/twin.png" else name]


def identity(records: StreamedFolder) -> bytes:
    return b"|".join(bytes(part) for part in records.identity("private"))


def test_the_identity_says_how_images_are_cut_and_which_records_these_are(folder: Path) -> None:
    records = streamed(folder)
    others = [streamed(folder, side=5), records.at(torch.arange(59)), records.at(torch.arange(60).flip(0))]
    assert identity(records) == identity(streamed(folder, workers=2))
    assert len({identity(records), *map(identity, others)}) == 4


def test_images_are_of_one_or_three_channels(folder: Path) -> None:
    with pytest.raises(InvalidValue, match="channels must be 1 or 3"):
        streamed_folder.read(folder, image_side=8, channels=2)
    with pytest.raises(InvalidValue, match="image_side must be"):
        streamed_folder.read(folder, image_side=0)


GROWTH = """
import resource, sys
from pathlib import Path
import torch
from lehr.data import streamed_folder

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

records = streamed_folder.read(Path(sys.argv[1]), image_side=128, workers=1)
parts = torch.split(torch.arange(len(records)), 20)
for _ in records.batches(parts[:10]):
    pass
before = peak()
for _ in records.batches(parts):
    pass
print(peak() - before)
"""


def test_the_memory_does_not_grow_with_the_records(tmp_path: Path) -> None:
    folder = write(tmp_path, 900, seed=3)
    ran = subprocess.run([sys.executable, "-c", GROWTH, folder], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 15  # MiB; the decoded images have 42
