from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.data import finding
from lehr.data.known import KnownFile
from lehr.errors import StoreError
from tests.data import small_known

SMALL = small_known.known()


def where(data_dir: Path | None = None) -> Path | None:
    found = finding.first_genuine(SMALL, data_dir)
    return None if found is None else found.folder.absolute()


def test_nothing_is_found_on_a_bare_machine(bare_machine: Path) -> None:
    assert where() is None
    assert where(bare_machine / "nowhere") is None


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "folder", ["data/Small/raw", "datasets/small", ".cache/lehr/small", ".cache/torchvision/small", "usr/Small/raw"]
)
def test_the_usual_folders_are_looked_through(bare_machine: Path, folder: str, compressed: bool) -> None:
    small_known.write(bare_machine / folder, compressed=compressed)
    assert where() == bare_machine / folder


@pytest.mark.parametrize("below", ["", "small", "Small/raw"])
def test_a_named_folder_is_the_data_sets_own_or_one_above(bare_machine: Path, tmp_path: Path, below: str) -> None:
    folder = small_known.write(tmp_path / "named" / below)
    assert where(tmp_path / "named") == folder


def test_the_variable_names_several_folders(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_known.write(tmp_path / "b")
    monkeypatch.setenv("LEHR_DATA", f"{tmp_path / 'a'}{os.pathsep}{folder}")
    assert where() == folder


def test_the_given_folder_comes_before_the_variable_and_that_before_the_usual_ones(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [
        small_known.write(folder) for folder in (tmp_path / "a", tmp_path / "b", bare_machine / "data" / "small")
    ]
    monkeypatch.setenv("LEHR_DATA", str(folders[1]))
    assert [found.folder.absolute() for found in finding.candidates(SMALL, folders[0])] == folders


def test_a_folder_with_a_file_missing_is_none(bare_machine: Path, tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "named")
    (folder / "test-labels").unlink()
    assert list(finding.candidates(SMALL, folder)) == []


def test_a_folder_with_other_content_is_passed_over_and_told(bare_machine: Path, tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "named")
    content = bytearray((folder / "test-labels").read_bytes())
    content[-1] ^= 1
    (folder / "test-labels").write_bytes(content)
    [found] = finding.candidates(SMALL, folder)
    assert "test-labels: its content has the sha256" in str(finding.wrong(found))
    small_known.write(bare_machine / "data" / "small")
    assert where(folder) == bare_machine / "data" / "small"


def test_an_md5_alone_decides_where_no_more_is_known(tmp_path: Path) -> None:
    file = replace(SMALL.layouts[0].files[0], num_bytes=None, sha256=None)
    path = small_known.write(tmp_path) / file.name
    assert finding.is_genuine(file, path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert not finding.is_genuine(file, path)


def test_a_size_is_compared_where_no_hash_is_known(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert finding.verified(KnownFile(name="file", num_bytes=5), path) == b"12345"
    with pytest.raises(StoreError, match="ends after 5"):
        finding.verified(KnownFile(name="file", num_bytes=6), path)


def test_the_cache_is_where_the_system_keeps_caches(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding.cache() == bare_machine / ".cache" / "lehr"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert finding.cache() == Path("/elsewhere/lehr")
