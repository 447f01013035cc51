from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from lehr.data import file_list
from lehr.data.file_list import FileList, listed
from lehr.errors import BadRecord, StoreError
from tests.data.picture_folders import replace_unseen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("dogs/b.png", "cats/z.JPEG", "cats/below/a.bmp", "cats/notes.txt", ".hidden/c.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "empty").mkdir()
    return tmp_path


def names(files: FileList) -> list[str]:
    return [os.fsdecode(files.name(place)) for place in range(len(files))]


def test_files_are_in_the_order_of_classes_and_names(folder: Path) -> None:
    files = listed(folder)
    assert files.classes == ("cats", "dogs", "empty")
    assert names(files) == ["cats/below/a.bmp", "cats/z.JPEG", "dogs/b.png"]
    assert files.labels.tolist() == [0, 0, 1]
    assert files.at(2).path == os.fsencode(folder / "dogs" / "b.png")
    assert files.at(2).num_bytes == len("dogs/b.png")
    assert files.at(2).changed_at == os.stat(folder / "dogs" / "b.png").st_mtime_ns


def test_a_pipe_with_the_name_of_an_image_is_passed_over(folder: Path) -> None:
    os.mkfifo(folder / "dogs" / "a.png")
    assert names(listed(folder))[-1] == "dogs/b.png"


def test_a_link_that_leads_nowhere_is_named(folder: Path) -> None:
    link = folder / listed(folder).classes[0] / "lost.png"
    link.symlink_to("nowhere.png")
    with pytest.raises(StoreError, match=r"lost\.png: No such file"):
        listed(folder)


def test_names_that_are_no_text_are_kept_as_they_are(folder: Path) -> None:
    raw = os.fsencode(folder / "dogs") + b"/\xff\xfe.png"
    with open(raw, "wb"):
        pass
    assert listed(folder).at(3).path == raw


def digest(files: FileList) -> bytes:
    return b"|".join(bytes(part) for part in files.identity())


def test_the_identity_follows_names_sizes_and_times(folder: Path) -> None:
    before = digest(listed(folder))
    assert digest(listed(folder)) == before
    path = folder / "dogs" / "b.png"
    os.utime(path, ns=(1, 1))
    touched = digest(listed(folder))
    path.write_bytes(b"longer than before")
    os.utime(path, ns=(1, 1))
    longer = digest(listed(folder))
    path.rename(folder / "dogs" / "c.png")
    renamed = digest(listed(folder))
    (folder / "more").mkdir()
    assert len({before, touched, longer, renamed, digest(listed(folder))}) == 5


def test_the_identity_follows_what_is_in_a_file_that_looks_as_before(folder: Path) -> None:
    before = digest(listed(folder))
    replace_unseen(folder / "dogs" / "b.png")
    assert digest(listed(folder)) != before


def test_equal_files_have_equal_digests_and_a_file_is_read_once(folder: Path) -> None:
    (folder / "dogs" / "c.png").write_bytes((folder / "dogs" / "b.png").read_bytes())
    files = listed(folder)
    first = list(files.digests(np.array([3, 0, 2])))
    assert first[0] == first[2] != first[1]
    (folder / "dogs" / "c.png").unlink()
    assert list(files.digests(np.array([0, 3]))) == [first[1], first[0]]


def test_a_file_that_is_gone_has_no_digest(folder: Path) -> None:
    files = listed(folder)
    (folder / "dogs" / "b.png").unlink()
    with pytest.raises(StoreError, match=f"cannot read {folder}: No such file"):
        list(files.digests(np.array([2])))


def test_a_folder_without_images_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StoreError, match="cannot read"):
            listed(folder)


def test_a_file_that_no_memory_holds_is_named_when_it_is_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_list, "MOST_BYTES", 10)
    with pytest.raises(BadRecord, match=r"below/a\.bmp .*16 bytes, more than 10"):
        listed(folder)


def test_a_listed_file_takes_few_bytes(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(2000):
        (tmp_path / "class" / f"{number:020}.png").touch()
    tracemalloc.start()
    try:
        files = listed(tmp_path)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(files) == 2000
    assert kept < 100 * len(files)  # a name of 30 bytes and 28 of numbers; a Path alone has some 200
