from __future__ import annotations

import gc
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lehr.data.decoders import Decoders, Job, WorkerLost
from lehr.data.file_list import FileList, listed
from lehr.errors import InvalidValue
from tests.data.picture_folders import spoil, write


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> FileList:
    folder = write(tmp_path_factory.mktemp("pictures"), 20, seed=1)
    spoil(folder)
    return listed(folder)


@pytest.fixture(scope="module")
def two() -> Iterator[Decoders]:
    made = Decoders(2)
    yield made
    made.close()


def job(files: FileList, *places: int) -> Job:
    return Job(
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


def test_the_same_comes_out_whatever_the_number_of_workers(files: FileList, two: Decoders) -> None:
    here, there = (job(files, *range(len(files))) for _ in range(2))
    Decoders(0).start(here)()
    two.start(there)()
    assert np.array_equal(here.pixels, there.pixels)
    assert np.array_equal(here.is_image, there.is_image)
    assert here.is_image.sum() == 20
    assert len(set(map(bytes, here.pixels))) == 21  # each picture is another one, and what is none is black


def test_jobs_are_answered_in_whatever_order_they_are_waited_for(files: FileList, two: Decoders) -> None:
    jobs = [job(files, place) for place in range(10)]
    waits = [two.start(each) for each in jobs]
    for wait in reversed(waits):
        wait()
    apart = [job(files, place) for place in range(10)]
    for each in apart:
        Decoders(0).start(each)()
    assert all(np.array_equal(one.pixels, other.pixels) for one, other in zip(jobs, apart, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_changed_is_an_error_and_the_workers_go_on(files: FileList, two: Decoders, workers: int) -> None:
    decoders = two if workers else Decoders(0)
    good = job(files, 0, 1)
    other = Job(files=[files.at(0)._replace(changed_at=5)], pixels=good.pixels[:1], is_image=good.is_image[:1])
    with pytest.raises(OSError, match="a file has changed since it was listed"):
        decoders.start(other)()
    decoders.start(good)()
    assert good.is_image.all()


def test_a_killed_worker_is_an_error_and_new_ones_are_started(files: FileList) -> None:
    decoders = Decoders(2)
    decoders.start(job(files, 0))()
    before = decoders.pids()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        decoders.start(job(files, 0))()
    assert all(map(is_gone, before))
    again = job(files, 0)
    decoders.start(again)()
    assert again.is_image.all()
    assert not set(before) & set(decoders.pids())
    decoders.close()
    assert decoders.pids() == ()


def test_workers_end_with_whoever_has_them(files: FileList) -> None:
    decoders = Decoders(1)
    decoders.start(job(files, 0))()
    [pid] = decoders.pids()
    del decoders
    assert _is_gone_soon(pid)


HANGING = """
import sys, time
import numpy as np
from pathlib import Path
from lehr.data.decoders import Decoders, Job
from lehr.data.file_list import listed

files, decoders = listed(Path(sys.argv[1])), Decoders(2)
decoders.start(Job(files=[files.at(0)], pixels=np.zeros((1, 3, 4, 4), np.uint8), is_image=np.zeros(1, np.bool_)))()
print(*decoders.pids(), flush=True)
time.sleep(600)
"""


def test_workers_do_not_outlive_a_process_that_is_killed(files: FileList) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HANGING, str(files.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as hanging:
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


def test_no_process_is_started_before_there_is_something_to_do() -> None:
    assert Decoders(3).pids() == ()


@pytest.mark.parametrize("workers", [-1, 1.5, True, None])
def test_workers_are_counted(workers: object) -> None:
    with pytest.raises(InvalidValue, match="workers must be"):
        Decoders(workers)  # type: ignore[arg-type]


def test_files_are_found_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: Decoders) -> None:
    two.start(job(listed(write(tmp_path / "here", 3, seed=2)), 0))()
    monkeypatch.chdir(tmp_path)
    relative = listed(Path("here"))
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
    decoders, asked = Decoders(workers), job(listed(tmp_path), 0, 1)
    decoders.start(asked)()
    decoders.close()
    assert not asked.is_image.any()
    assert capfd.readouterr() == ("", "")
    os.write(2, b"heard again")
    assert capfd.readouterr().err == "heard again"
