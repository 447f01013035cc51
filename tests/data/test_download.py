from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from lehr.data import catalogue, download
from lehr.data.catalogue import Source
from lehr.errors import StoreError
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
    got = download.get(small_known.known(Source(server.address)))
    assert (got.folder, got.source) == (there, "this machine")
    assert server.asked_for == []


def test_files_of_a_mirror_are_fetched_and_then_found(server: Server, folder: Path) -> None:
    server.files = dict(PACKED)
    known = small_known.known(Source(server.address))
    got = download.get(known)
    assert (got.folder, got.source, got.failures) == (folder, server.address, ())
    assert names(folder) == sorted(f"{name}.gz" for name in small_known.CONTENTS)
    assert catalogue.find_copy(known) is not None


def test_a_wrong_content_is_told_and_nothing_of_it_is_kept(server: Server, folder: Path) -> None:
    server.files = PACKED | {"/train-images.gz": gzip.compress(b"other")}
    got = download.get(small_known.known(Source(server.address)))
    assert got.folder is None
    assert "train-images.gz.part: it should hold 40 bytes and holds only 5" in got.failures[0]
    assert names(folder) == []


def test_the_next_source_is_asked_where_one_fails(server: Server, folder: Path) -> None:
    server.files = {f"/good{path}": content for path, content in PACKED.items()}
    bad, good = (Source(f"{server.address}{name}/") for name in ("bad", "good"))
    got = download.get(small_known.known(bad, good))
    assert got.source == good.address
    assert [failure for failure in got.failures if "404" in failure] == list(got.failures)
    assert len(got.failures) == 1


def test_a_later_attempt_continues_the_file_that_was_cut_off_and_keeps_the_whole_ones(
    server: Server, folder: Path
) -> None:
    server.files = dict(PACKED)
    known = small_known.known(Source(server.address))
    server.cut_after = [10**6, 5, 5, 5]
    assert download.get(known).folder is None
    assert names(folder) == ["train-images.gz", "train-labels.gz.part"]
    server.asked_for.clear()
    assert download.get(known).folder == folder
    assert server.asked_for[0] == "/train-labels.gz bytes=15-"
    assert len(server.asked_for) == 3


def test_a_beginning_of_another_file_is_thrown_away_and_all_is_fetched_anew(server: Server, folder: Path) -> None:
    server.files = dict(PACKED)
    folder.mkdir(parents=True)
    (folder / "train-images.gz.part").write_bytes(b"of another file")
    assert download.get(small_known.known(Source(server.address))).folder == folder
    assert server.asked_for[:2] == ["/train-images.gz bytes=15-", "/train-images.gz whole"]


def archive(server: Server, content: bytes) -> Source:
    server.files["/small.tar.gz"] = content
    return Source(address=f"{server.address}small.tar.gz", md5=hashlib.md5(content).hexdigest())


def test_files_are_taken_out_of_an_archive_which_is_not_kept(server: Server, folder: Path) -> None:
    got = download.get(small_known.known(archive(server, small_known.tar_bytes())))
    assert got.folder == folder
    assert names(folder) == sorted(small_known.CONTENTS)


def test_an_archive_of_another_hash_is_not_opened(server: Server, folder: Path) -> None:
    source = archive(server, small_known.tar_bytes())
    server.files["/small.tar.gz"] = small_known.tar_bytes({"surplus": b"1"})
    got = download.get(small_known.known(source))
    assert "MD5" in got.failures[0]
    assert names(folder) == []


def test_offline_nothing_is_asked(server: Server, folder: Path) -> None:
    got = download.get(small_known.known(Source(server.address)), offline=True)
    assert (got.folder, got.failures, server.asked_for) == (None, (), [])
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_told(server: Server, bare_machine: Path) -> None:
    (bare_machine / "file").write_text("")
    got = download.get(small_known.known(Source(server.address)), bare_machine / "file")
    assert "cannot write to" in got.failures[0]


CONTENT = bytes(range(256)) * 40


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def fetch(server: Server, part: Path, *, at_most: int = 10**6) -> None:
    download.download_file(f"{server.address}file", part, at_most=at_most)


def test_a_file_that_was_cut_off_is_continued_where_it_ended(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    server.cut_after = [1000, 500]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked_for == ["/file whole", "/file bytes=1000-", "/file bytes=1500-"]


def test_a_server_without_ranges_sends_it_all_again(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    server.knows_ranges = False
    part.write_bytes(b"x" * 20_000)
    fetch(server, part)
    assert part.read_bytes() == CONTENT


def test_a_complete_part_is_left_as_it_is(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    part.write_bytes(CONTENT)
    fetch(server, part)
    assert part.read_bytes() == CONTENT


def test_a_connection_that_is_cut_again_and_again_is_given_up_and_what_came_is_kept(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    server.cut_after = [10] * 9
    with pytest.raises(StoreError, match="cut off 3 times; what came is kept"):
        fetch(server, part)
    assert part.read_bytes() == CONTENT[:30]


def test_more_than_there_should_be_is_not_taken(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    with pytest.raises(StoreError, match="has more than 1,000 bytes"):
        fetch(server, part, at_most=1000)
    assert not part.exists()


def test_progress_is_told(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    told: list[tuple[str, int, int | None]] = []
    download.download_file(f"{server.address}file", part, at_most=10**6, progress=lambda *each: told.append(each))
    assert told[-1] == ("file", len(CONTENT), len(CONTENT))


def test_a_server_that_is_not_there_is_told(server: Server, part: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot download http://127\.0\.0\.1:9/file"):
        download.download_file("http://127.0.0.1:9/file", part, at_most=10)


@pytest.mark.parametrize("kind", ["file", "ftp", "data"])
def test_no_redirection_leads_into_this_machine(server: Server, part: Path, tmp_path: Path, kind: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    server.redirect_to = f"{kind}://{secret}"
    with pytest.raises(StoreError, match="cannot download"):
        fetch(server, part)
    assert not part.exists()


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/a", "data:,a", "nothing"])
def test_only_the_web_is_spoken_to(part: Path, address: str) -> None:
    with pytest.raises(StoreError, match="cannot download"):
        download.download_file(address, part, at_most=1000)
    assert not part.exists()


def test_a_redirection_to_another_page_is_followed_but_never_out_of_encryption() -> None:
    asked = urllib.request.Request("https://example.org/a")
    follow = download._NoDowngrade().redirect_request
    with pytest.raises(urllib.error.URLError, match="from https"):
        follow(asked, None, 302, "", {}, "http://example.org/b")  # type: ignore[arg-type]
    followed = follow(asked, None, 302, "", {}, "https://example.org/b")  # type: ignore[arg-type]
    assert followed is not None
    assert followed.full_url == "https://example.org/b"


LAYOUT = small_known.known().layout


def take(content: bytes, folder: Path) -> None:
    assert LAYOUT is not None
    download.extract_files(io.BytesIO(content), LAYOUT, folder, name="the archive")


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("below", ["", "package/data/", "../../", "/etc/"])
def test_only_the_known_files_are_taken_and_only_into_the_folder(tmp_path: Path, below: str) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    take(small_known.tar_bytes({"script": b"rm -rf"}, below=below), folder)
    assert held(folder) == small_known.CONTENTS
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == list(held(folder))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="the archive: it does not contain test-labels"):
        take(small_known.tar_bytes(leave_out="test-labels"), tmp_path)


def test_a_file_of_other_content_is_not_kept(tmp_path: Path) -> None:
    other = small_known.CONTENTS["train-images"][:-1] + b"x"
    with pytest.raises(StoreError, match="SHA-256"):
        take(_with(other), tmp_path)
    assert held(tmp_path) == {}


def test_a_file_longer_than_it_should_be_is_written_no_further(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds more"):
        take(_with(bytes(5 * 1024**2)), tmp_path)
    assert held(tmp_path) == {}


def test_links_are_not_followed(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        member = tarfile.TarInfo("train-images")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(StoreError, match="does not contain"):
        take(whole.getvalue(), tmp_path)
    assert held(tmp_path) == {}


@pytest.mark.parametrize("damage", [lambda raw: raw[:60], lambda raw: raw[:3], lambda raw: b"nothing", lambda raw: b""])
def test_a_damaged_archive_is_told(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    with pytest.raises(StoreError, match="the archive"):
        take(damage(small_known.tar_bytes()), tmp_path)


def _with(train_images: bytes) -> bytes:
    return small_known.tar_bytes({"train-images": train_images})
