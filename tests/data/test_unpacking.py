from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from lehr.data import unpacking
from lehr.errors import StoreError
from tests.data import small_known

LAYOUT = small_known.known().layouts[0]


def take(content: bytes, folder: Path) -> None:
    unpacking.take(io.BytesIO(content), LAYOUT, folder, name="the archive")


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("below", ["", "package/data/", "../../", "/etc/"])
def test_only_the_known_files_are_taken_and_only_into_the_folder(tmp_path: Path, below: str) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    take(small_known.tar_bytes({"script": b"rm -rf"}, below=below), folder)
    assert held(folder) == small_known.CONTENTS
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == list(held(folder))


def test_compressed_files_stay_compressed(tmp_path: Path) -> None:
    packed = {f"{name}.gz": gzip.compress(content) for name, content in small_known.CONTENTS.items()}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for name, content in packed.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    take(whole.getvalue(), tmp_path)
    assert held(tmp_path) == packed


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the archive: it does not hold test-labels"):
        take(small_known.tar_bytes(leave_out="test-labels"), tmp_path)


def test_a_file_of_other_content_is_not_kept(tmp_path: Path) -> None:
    other = small_known.CONTENTS["train-images"][:-1] + b"x"
    with pytest.raises(StoreError, match="sha256"):
        take(_with(other), tmp_path)
    assert held(tmp_path) == {}


def test_a_file_longer_than_it_should_be_is_written_no_further(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="goes on"):
        take(_with(bytes(5 * 1024**2)), tmp_path)
    assert held(tmp_path) == {}


def test_links_are_not_followed(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        member = tarfile.TarInfo("train-images")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(StoreError, match="does not hold"):
        take(whole.getvalue(), tmp_path)
    assert held(tmp_path) == {}


@pytest.mark.parametrize("damage", [lambda raw: raw[:60], lambda raw: raw[:3], lambda raw: b"nothing", lambda raw: b""])
def test_a_damaged_archive_is_told(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    with pytest.raises(StoreError, match="the archive"):
        take(damage(small_known.tar_bytes()), tmp_path)


def _with(train_images: bytes) -> bytes:
    return small_known.tar_bytes({"train-images": train_images})
