from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from lehr.data import downloading
from lehr.errors import StoreError
from tests.data.conftest import Server

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def fetch(server: Server, part: Path, *, at_most: int = 10**6) -> None:
    downloading.fetch(f"{server.address}file", part, at_most=at_most)


def test_a_file_arrives_whole(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    fetch(server, part)
    assert part.read_bytes() == CONTENT


def test_a_file_that_was_cut_off_is_continued_where_it_ended(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    server.cut_after = [1000, 500]
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked_for == ["/file whole", "/file bytes=1000-", "/file bytes=1500-"]


def test_what_an_earlier_process_left_is_continued(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    part.write_bytes(CONTENT[:77])
    fetch(server, part)
    assert part.read_bytes() == CONTENT
    assert server.asked_for == ["/file bytes=77-"]


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
    with pytest.raises(StoreError, match="goes on after 1,000 bytes"):
        fetch(server, part, at_most=1000)
    assert not part.exists()


def test_progress_is_told(server: Server, part: Path) -> None:
    server.files["/file"] = CONTENT
    told: list[tuple[str, int, int | None]] = []
    downloading.fetch(f"{server.address}file", part, at_most=10**6, progress=lambda *each: told.append(each))
    assert told[-1] == ("file", len(CONTENT), len(CONTENT))


def test_a_file_that_the_server_does_not_have_is_told(server: Server, part: Path) -> None:
    with pytest.raises(StoreError, match="the server answered 404"):
        fetch(server, part)
    assert not part.exists()


def test_a_server_that_is_not_there_is_told(server: Server, part: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot download http://127\.0\.0\.1:9/file"):
        downloading.fetch("http://127.0.0.1:9/file", part, at_most=10)


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
        downloading.fetch(address, part, at_most=1000)
    assert not part.exists()


def test_a_redirection_to_another_page_is_followed_but_never_out_of_encryption() -> None:
    asked = urllib.request.Request("https://example.org/a")
    follow = downloading._Redirection().redirect_request
    with pytest.raises(urllib.error.URLError, match="from https"):
        follow(asked, None, 302, "", {}, "http://example.org/b")  # type: ignore[arg-type]
    followed = follow(asked, None, 302, "", {}, "https://example.org/b")  # type: ignore[arg-type]
    assert followed is not None
    assert followed.full_url == "https://example.org/b"


def test_a_folder_that_cannot_be_written_to_is_told(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT
    with pytest.raises(StoreError, match="cannot write"):
        fetch(server, tmp_path / "nowhere" / "file.part")
