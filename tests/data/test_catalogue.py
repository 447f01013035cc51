"""Built-in data sets: their public facts, copies on this machine, downloads."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch

from lehr.data import catalogue, data_set
from lehr.data.catalogue import CATALOGUE, DataFile, DataSetInfo, Source, data_set_info
from lehr.data.data_set import DataSet
from lehr.data.preparation import Preparation
from lehr.data.records import InMemory, overlap
from lehr.errors import InvalidValue, StoreError
from tests.data import small_known
from tools.fresh_imports import heavy_imports

SMALL = small_known.known()


@pytest.mark.parametrize("known", CATALOGUE.values(), ids=lambda known: known.name)
def test_public_facts_and_files_agree(known: DataSetInfo) -> None:
    assert data_set_info(known.name) is known
    assert len(known.mean) == known.shape[0]
    assert Preparation(mean=known.mean, std=known.std).mean == known.mean
    assert all(source.address.startswith("https://") for source in known.sources)
    for file in known.files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256) if file.sha256 else all(s.md5 for s in known.sources)
    for files, records in ((known.train, known.records), (known.test, known.test_records)):
        headers = sum(file.num_bytes for file in files) - records * (math.prod(known.shape) + 1)
        assert not files or 0 <= headers <= max(records, 24)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="cifar-10, cifar-100, digits, fashion-mnist, mnist"):
        data_set_info("imagenet")


def test_finding_downloading_and_decoding_need_no_torch() -> None:
    light = ["lehr.data", "lehr.data.catalogue", "lehr.data.decoding", "lehr.cli.data"]
    sources = Path(__file__).parents[2] / "src"
    assert heavy_imports(light, watched=["torch", "sklearn", "PIL"], search_path=sources) == {}


# --- Copies on this machine -----------------------------------------------------------------------------------------


def where(data_dir: Path | None = None) -> Path | None:
    found = catalogue.find_copy(SMALL, data_dir)
    return None if found is None else found.folder.absolute()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "folder", ["data/Small/raw", "datasets/small", ".cache/lehr/small", ".cache/torchvision/small", "usr/Small/raw"]
)
def test_the_usual_folders_are_searched(bare_machine: Path, folder: str, compressed: bool) -> None:
    small_known.write(bare_machine / folder, compressed=compressed)
    assert where() == bare_machine / folder


@pytest.mark.parametrize("below", ["", "small", "Small/raw"])
def test_a_named_folder_is_the_data_sets_own_or_one_above(bare_machine: Path, tmp_path: Path, below: str) -> None:
    folder = small_known.write(tmp_path / "named" / below)
    assert where(tmp_path / "named") == folder


def test_the_given_folder_precedes_the_variable_and_that_the_usual_ones(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [small_known.write(folder) for folder in (tmp_path / "a", tmp_path / "b", bare_machine / "data/small")]
    monkeypatch.setenv("LEHR_DATA", f"{tmp_path / 'nothing'}{os.pathsep}{folders[1]}")
    assert [found.folder.absolute() for found in catalogue.local_copies(SMALL, folders[0])] == folders


def test_incomplete_and_wrong_copies_are_passed_over(bare_machine: Path, tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "named")
    (folder / "test-labels").unlink()
    assert list(catalogue.local_copies(SMALL, folder)) == []
    (folder / "test-labels").write_bytes(small_known.CONTENTS["test-labels"][:-1] + b"x")
    [found] = catalogue.local_copies(SMALL, folder)
    assert "SHA-256" in str(found.problem())
    small_known.write(bare_machine / "data" / "small")
    assert where(folder) == bare_machine / "data" / "small"


def test_the_size_is_compared_where_no_hash_is_known(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert DataFile("file", 5).read(path) == b"12345"
    for wrong in (4, 6):
        with pytest.raises(StoreError):
            DataFile("file", wrong).read(path)


def test_the_cache_folder_follows_the_system(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalogue.cache_folder() == bare_machine / ".cache" / "lehr"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert catalogue.cache_folder() == Path("/elsewhere/lehr")


# --- Loading --------------------------------------------------------------------------------------------------------


@pytest.fixture
def only(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[DataSetInfo], str]:
    """Makes one data set the only known one."""

    def know(info: DataSetInfo) -> str:
        monkeypatch.setattr(catalogue, "CATALOGUE", {info.name: info})
        return info.name

    return know


@pytest.mark.parametrize("compressed", [False, True])
def test_a_data_set_is_loaded_with_its_public_facts(
    only: Callable[[DataSetInfo], str], tmp_path: Path, compressed: bool
) -> None:
    small_known.write(tmp_path / "here", compressed=compressed)
    loaded = data_set.load(only(SMALL), tmp_path / "here")
    assert (loaded.name, loaded.records, loaded.num_classes, loaded.shape) == ("small", 6, 3, (1, 2, 2))
    assert loaded.train.inputs.shape == (6, 1, 2, 2)
    assert loaded.train.inputs.flatten().tolist() == list(range(24))
    assert (loaded.train.targets.tolist(), loaded.test.targets.tolist()) == ([0, 1, 2, 0, 1, 2], [2, 1, 0])
    assert loaded.preparation.mean == (0.5,)


def test_a_missing_data_set_is_refused_with_files_and_folder(
    only: Callable[[DataSetInfo], str], tmp_path: Path
) -> None:
    with pytest.raises(StoreError) as refused:
        data_set.load(only(SMALL), tmp_path)
    for part in ("`lehr data get small`", f"{tmp_path}/Small/raw", "train-images (40 bytes)", "test-labels ("):
        assert part in str(refused.value)
    folder = small_known.write(tmp_path / "here")
    (folder / "train-labels").write_bytes(small_known.idx_bytes(6, numbers=bytes(6)))
    with pytest.raises(StoreError, match="train-labels: its content has the SHA-256"):
        data_set.load("small", folder)


@pytest.mark.parametrize("reader, labels", [("cifar-10", [4]), ("cifar-100", [1, 4])])
def test_both_cifar_layouts_are_read_and_joined(
    only: Callable[[DataSetInfo], str], tmp_path: Path, reader: str, labels: list[int]
) -> None:
    row = bytes(labels) + bytes(3072)
    files = tuple(DataFile(name, len(row), hashlib.sha256(row).hexdigest()) for name in ("one", "two", "three"))
    for file in files:
        (tmp_path / file.name).write_bytes(row)
    info = replace(SMALL, reader=reader, train=files[:2], test=files[2:], shape=(3, 32, 32))
    loaded = data_set.load(only(info), tmp_path)
    assert (loaded.train.targets.tolist(), loaded.test.targets.tolist()) == ([4, 4], [4])
    assert loaded.train.inputs.shape == (2, 3, 32, 32)


def test_the_pickle_layout_of_cifar_is_named_with_the_address_of_the_binary_one(bare_machine: Path) -> None:
    (bare_machine / "data" / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cifar-10-batches-py is the Python .*cifar-10-binary\.tar\.gz"):
        data_set.load("cifar-10")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10"])
def test_real_data_sets_are_complete_where_present(name: str) -> None:
    info = data_set_info(name)
    if not os.environ.get(catalogue.VARIABLE) or next(catalogue.local_copies(info), None) is None:
        pytest.skip(f"no {name} in LEHR_DATA")
    loaded = data_set.load(name)
    assert (len(loaded.train), len(loaded.test)) == (info.records, info.test_records)
    assert loaded.train.targets.bincount().shape == (info.num_classes,)
    pixels = loaded.preparation.prepared(loaded.train.inputs[:10_000])
    assert pixels.mean().abs() < 0.02
    assert (pixels.std() - 1).abs() < 0.02


def test_the_shipped_digits_have_the_public_number_and_constants() -> None:
    train, test = data_set.read_digits()
    info = CATALOGUE["digits"]
    assert (len(train), len(test)) == (info.records, info.test_records)
    assert overlap(train, test) == ()
    pixels = torch.cat([train.inputs, test.inputs])
    assert abs(pixels.mean().item() - info.mean[0]) < 1e-4
    assert abs(pixels.std().item() - info.std[0]) < 1e-4


@pytest.mark.parametrize("changed", [{"records": 0}, {"records": 1.5}, {"num_classes": 0}, {"name": " "}])
def test_impossible_facts_are_refused(changed: dict[str, object]) -> None:
    records = InMemory(torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))
    facts = {"name": "mine", "num_classes": 2, "shape": (1, 2, 2), "records": 5} | changed
    with pytest.raises(InvalidValue):
        DataSet(train=records, test=records, preparation=Preparation(), **facts)  # type: ignore[arg-type]


# --- Downloads ------------------------------------------------------------------------------------------------------


@dataclass
class Server:
    """A web server with these files."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    redirect_to: str | None = None
    asked_for: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked_for.append(self.path)
            content = served.files.get(self.path)
            if served.redirect_to is not None:
                self.send_response(302)
                self.send_header("Location", served.redirect_to)
                self.end_headers()
            elif content is None:
                self.send_error(404)
            else:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        served.address = f"http://127.0.0.1:{listening.server_port}/"
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield served
        listening.shutdown()
        thread.join()


PACKED = {f"/{name}.gz": gzip.compress(content, mtime=0) for name, content in small_known.CONTENTS.items()}


@pytest.fixture
def folder(bare_machine: Path) -> Path:
    return bare_machine / ".cache/lehr/Small/raw"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_copy_on_this_machine_is_not_downloaded(server: Server, bare_machine: Path) -> None:
    known = small_known.known(Source(server.address))
    assert catalogue.get(known, offline=True).folder is None
    there = small_known.write(bare_machine / "data" / "small")
    got = catalogue.get(known)
    assert (got.folder, got.source) == (there, "this machine")
    assert server.asked_for == []


def test_the_next_source_is_tried_where_one_fails(server: Server, folder: Path) -> None:
    server.files = {f"/good{path}": content for path, content in PACKED.items()}
    bad, good = (Source(f"{server.address}{name}/") for name in ("bad", "good"))
    known = small_known.known(bad, good)
    got = catalogue.get(known)
    assert (got.folder, got.source, len(got.failures)) == (folder, good.address, 1)
    assert "404" in got.failures[0]
    assert names(folder) == sorted(f"{name}.gz" for name in small_known.CONTENTS)
    assert catalogue.find_copy(known) is not None


def test_wrong_content_is_not_kept(server: Server, folder: Path) -> None:
    server.files = PACKED | {"/train-images.gz": gzip.compress(b"other")}
    got = catalogue.get(small_known.known(Source(server.address)))
    assert got.folder is None
    assert "train-images.gz.part" in got.failures[0]
    assert names(folder) == []


def test_files_are_extracted_from_an_archive_of_the_known_hash(server: Server, folder: Path) -> None:
    content = small_known.tar_bytes()
    known = small_known.known(Source(f"{server.address}small.tar.gz", hashlib.md5(content).hexdigest()))
    server.files["/small.tar.gz"] = small_known.tar_bytes({"surplus": b"1"})
    assert "MD5" in catalogue.get(known).failures[0]
    assert names(folder) == []
    server.files["/small.tar.gz"] = content
    assert catalogue.get(known).folder == folder
    assert names(folder) == sorted(small_known.CONTENTS)


def test_a_folder_that_cannot_be_made_is_a_failure(server: Server, bare_machine: Path) -> None:
    (bare_machine / "file").write_text("")
    got = catalogue.get(small_known.known(Source(server.address)), bare_machine / "file")
    assert "cannot write to" in got.failures[0]


def test_a_download_reports_progress_and_stops_at_its_limit(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = content = bytes(10_240)
    reported: list[tuple[str, int, int | None]] = []
    part, address = tmp_path / "file.part", f"{server.address}file"
    catalogue.download_file(address, part, at_most=10**6, progress=lambda *each: reported.append(each))
    assert part.read_bytes() == content
    assert reported[-1] == ("file", len(content), len(content))
    with pytest.raises(StoreError, match="more than 1,000 bytes"):
        catalogue.download_file(address, part, at_most=1000)
    assert not part.exists()


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/a", "data:,a", "http://127.0.0.1:9/a"])
def test_only_the_web_is_downloaded_from(server: Server, tmp_path: Path, address: str) -> None:
    server.redirect_to = address
    for asked in (address, server.address):
        with pytest.raises(StoreError, match="cannot download"):
            catalogue.download_file(asked, tmp_path / "part", at_most=1000)
        assert not (tmp_path / "part").exists()


def extracted(content: bytes, folder: Path) -> dict[str, bytes]:
    folder.mkdir(parents=True)
    archive = folder.parent / "archive.tar.gz"
    archive.write_bytes(content)
    try:
        catalogue.extract_files(archive, SMALL, folder)
    finally:
        archive.unlink()
        found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return found


@pytest.mark.parametrize("below", ["", "package/data/", "../../", "/etc/"])
def test_only_known_files_are_extracted_and_only_into_the_folder(tmp_path: Path, below: str) -> None:
    content = small_known.tar_bytes({"script": b"rm -rf"}, below=below)
    assert extracted(content, tmp_path / "a" / "b") == small_known.CONTENTS
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == len(small_known.CONTENTS)


def link() -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        member = tarfile.TarInfo("train-images")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    return whole.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(small_known.tar_bytes(leave_out="test-labels"), id="a file is missing"),
        pytest.param(small_known.tar_bytes({"train-images": bytes(40)}), id="other content"),
        pytest.param(small_known.tar_bytes({"train-images": bytes(5 * 1024**2)}), id="longer than it should be"),
        pytest.param(link(), id="a link"),
        pytest.param(small_known.tar_bytes()[:60], id="truncated"),
        pytest.param(b"nothing", id="no archive"),
    ],
)
def test_other_archives_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(StoreError):
        extracted(content, tmp_path / "folder")
    left = {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    assert left.items() <= small_known.CONTENTS.items()
