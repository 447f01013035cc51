"""The built-in data sets (``catalogue.toml``), copies of them on this machine, and downloads. Needs no torch.

- ``CATALOGUE``, ``data_set_info``: public facts, files with sizes and hashes, addresses
- ``local_copies``, ``find_copy``: copies on this machine
- ``get``: a verified copy on this machine, or else a download from the first source that works

Folders are searched in this order: ``data_dir``, those in the variable ``LEHR_DATA``, ``data`` and ``datasets`` below
the current and the home folder, torchvision's caches, Lehr's cache, ``/usr/share/datasets``. A downloaded file gets its
name only after its content is verified.
"""

from __future__ import annotations

import hashlib
import http.client
import math
import os
import shutil
import tarfile
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from lehr import validate
from lehr.data.file_content import named_errors, read_file
from lehr.errors import StoreError

VARIABLE = "LEHR_DATA"
_SYSTEM = Path("/usr/share/datasets")
_DEFAULT = ("data", "datasets", "~/data", "~/datasets", "~/.cache/torchvision", "~/.cache/torch/datasets")
_LARGEST_ARCHIVE = 512 * 1024**2
_GZIP_OVERHEAD = 1024**2  # the most that compression can add to a file it does not shrink
_TIMEOUT = 30.0
_CHUNK = 256 * 1024

PathLike: TypeAlias = str | os.PathLike[str]
# Called with the name of a file, the bytes received, and the total where the server has stated it.
Progress: TypeAlias = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class DataFile:
    """A file by its uncompressed content."""

    name: str
    num_bytes: int
    sha256: str | None = None

    def read(self, path: Path) -> bytearray:
        """Return the content of a copy after comparing its size and hash; raises ``StoreError``."""
        whole = read_file(path, at_most=self.num_bytes)
        if len(whole) != self.num_bytes:
            raise StoreError(f"cannot use {path}: it holds {len(whole):,} bytes, not {self.num_bytes:,}")
        given = hashlib.sha256(whole).hexdigest()
        if self.sha256 not in (None, given):
            raise StoreError(f"cannot use {path}: its content has the SHA-256 {given}, not {self.sha256}")
        return whole


@dataclass(frozen=True)
class Source:
    """A compressed tar file with all files and its published MD5, or an address below which every file is NAME.gz."""

    address: str
    md5: str | None = None


@dataclass(frozen=True, kw_only=True)
class DataSetInfo:
    """An entry of ``catalogue.toml``: a data set and what is public about it. One without files ships with Lehr."""

    name: str
    homepage: str
    citation: str
    records: int
    test_records: int
    num_classes: int
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    reader: str = ""
    folders: tuple[str, ...] = ()
    train: tuple[DataFile, ...] = ()
    test: tuple[DataFile, ...] = ()
    sources: tuple[Source, ...] = ()
    unsupported_folder: str | None = None  # of a layout that Lehr does not read

    @property
    def files(self) -> tuple[DataFile, ...]:
        """All files."""
        return self.train + self.test

    @property
    def num_bytes(self) -> int:
        """The size of all records, uncompressed."""
        return (self.records + self.test_records) * (math.prod(self.shape) + 1)


def _entry(name: str, table: dict[str, Any]) -> DataSetInfo:
    kinds: dict[str, Any] = {"train": DataFile, "test": DataFile, "sources": Source}
    fields: dict[str, Any] = {
        key: tuple(kinds[key](*each) if key in kinds else each for each in value) if isinstance(value, list) else value
        for key, value in table.items()
    }
    return DataSetInfo(name=name, **fields)


CATALOGUE: Mapping[str, DataSetInfo] = {
    name: _entry(name, table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}


def data_set_info(name: str) -> DataSetInfo:
    """Return the entry of that name; the error lists the names."""
    return CATALOGUE[validate.one_of(CATALOGUE, name=name)]


@dataclass(frozen=True)
class LocalCopy:
    """A folder that has all files of a data set by name. Their content is not verified yet."""

    info: DataSetInfo
    folder: Path
    paths: Mapping[DataFile, Path]

    def problem(self) -> str | None:
        """Return what is wrong with the content of the files, or None."""
        try:
            for file, path in self.paths.items():
                file.read(path)
        except StoreError as error:
            return str(error)
        return None


def cache_folder() -> Path:
    """Return the folder for downloads where no other is given."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lehr"


def target_folder(info: DataSetInfo, data_dir: PathLike | None = None) -> Path:
    """Return the folder that downloads of a data set go into."""
    return (_configured_folders(data_dir) or [cache_folder()])[0] / info.folders[0]


def local_copies(info: DataSetInfo, data_dir: PathLike | None = None) -> Iterator[LocalCopy]:
    """Yield every folder that has all files of a data set by name, in the order of the search."""
    configured = _configured_folders(data_dir)  # each may be a data set's own folder or one above it
    for root in _searched_folders(data_dir) if info.files else ():
        for folder in [root / below for below in info.folders] + [root] * (root in configured):
            paths = {file: path for file in info.files if (path := _present(folder, file.name)) is not None}
            if len(paths) == len(info.files):
                yield LocalCopy(info, folder, paths)


def find_copy(info: DataSetInfo, data_dir: PathLike | None = None) -> LocalCopy | None:
    """Return the first copy whose content is verified."""
    return next((copy for copy in local_copies(info, data_dir) if copy.problem() is None), None)


def how_to_get(info: DataSetInfo, data_dir: PathLike | None = None) -> str:
    """Return how to install a data set that is not on this machine, as one paragraph."""
    files = ", ".join(f"{file.name} ({file.num_bytes:,} bytes)" for file in info.files)
    advice = (
        f"Get it with `lehr data get {info.name}`, or put these files, uncompressed or with .gz, into "
        f"{target_folder(info, data_dir)}: {files}"
    )
    for root in _searched_folders(data_dir) if info.unsupported_folder else ():
        if (folder := root / str(info.unsupported_folder)).is_dir():
            binary = info.sources[0].address
            return f"{folder} is the Python (pickle) layout; Lehr reads the binary layout, {binary}. {advice}"
    return advice


def _configured_folders(data_dir: PathLike | None) -> list[Path]:
    named = [os.fspath(data_dir or ""), *os.environ.get(VARIABLE, "").split(os.pathsep)]
    return [Path(folder).expanduser().absolute() for folder in named if folder]


def _searched_folders(data_dir: PathLike | None) -> list[Path]:
    default = [Path(folder).expanduser().absolute() for folder in _DEFAULT]
    return list(dict.fromkeys([*_configured_folders(data_dir), *default, cache_folder(), _SYSTEM]))


def _present(folder: Path, name: str) -> Path | None:
    try:
        return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    except OSError:  # no permission to look into the folder
        return None


@dataclass(frozen=True, kw_only=True)
class FetchResult:
    """Where a data set is now (None if no source worked), where it came from, and the sources that failed."""

    folder: Path | None = None
    source: str | None = None
    failures: tuple[str, ...] = ()


def no_progress(name: str, received: int, total: int | None) -> None:
    """Report nothing."""


def get(
    info: DataSetInfo, data_dir: PathLike | None = None, *, offline: bool = False, progress: Progress = no_progress
) -> FetchResult:
    """Find a verified copy of the data set, or else download it from the first source that has it."""
    copy = find_copy(info, data_dir)
    if copy is not None:
        return FetchResult(folder=copy.folder, source="this machine")
    failures: list[str] = []
    for source in info.sources if not offline else ():
        folder = target_folder(info, data_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _download_from(source, info, folder, progress)
            return FetchResult(folder=folder, source=source.address, failures=tuple(failures))
        except StoreError as error:
            failures.append(str(error))
        except OSError as error:
            failures.append(f"cannot write to {folder}: {error.strerror or error}")
    return FetchResult(failures=tuple(failures))


def _download_from(source: Source, info: DataSetInfo, folder: Path, progress: Progress) -> None:
    """Download the files of a data set. Raises ``StoreError`` if this source does not have them."""
    if source.md5 is not None:
        part = folder / f"{PurePosixPath(source.address).name}.part"
        try:
            download_file(source.address, part, at_most=_LARGEST_ARCHIVE, progress=progress)
            with open(part, "rb") as archive:
                given = hashlib.file_digest(archive, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if given != source.md5:
                raise StoreError(f"cannot use {source.address}: its content has the MD5 {given}, not {source.md5}")
            extract_files(part, info, folder)
        finally:
            part.unlink(missing_ok=True)
        return
    for file in info.files:
        target = folder / f"{file.name}.gz"
        part, at_most = target.with_suffix(".gz.part"), file.num_bytes + _GZIP_OVERHEAD
        download_file(f"{source.address}{target.name}", part, at_most=at_most, progress=progress)
        _verify_and_rename(part, file, target)


def extract_files(archive: Path, info: DataSetInfo, folder: Path) -> None:
    """Extract the files of a data set, by base name, from a tar file. Nothing else of it is written."""
    missing = {file.name: file for file in info.files}
    with named_errors(archive), tarfile.open(archive) as members:
        for member in members:
            name = PurePosixPath(member.name).name
            if name not in missing or not member.isreg() or (stream := members.extractfile(member)) is None:
                continue
            file, part = missing.pop(name), folder / f"{name}.part"
            if member.size != file.num_bytes:
                raise StoreError(f"cannot use {archive}: {name} has {member.size:,} bytes, not {file.num_bytes:,}")
            with open(part, "wb") as copy:
                shutil.copyfileobj(stream, copy)
            _verify_and_rename(part, file, folder / name)
    if missing:
        raise StoreError(f"cannot use {archive}: it does not contain {', '.join(sorted(missing))}")


def _verify_and_rename(part: Path, file: DataFile, target: Path) -> None:
    """Give a file its final name if its content is verified; remove it otherwise."""
    try:
        file.read(part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def download_file(address: str, part: Path, *, at_most: int, progress: Progress = no_progress) -> None:
    """Write the content of an http(s) address, at most so many bytes, to ``part``; it is not verified yet."""
    if not address.startswith(("http://", "https://")):
        raise StoreError(f"cannot download {address}: it is no address of the web")
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as response, open(part, "wb") as file:
            total, received = response.length, 0
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                if received > at_most:
                    raise ValueError(f"it has more than {at_most:,} bytes")
                file.write(chunk)
                progress(part.name.removesuffix(".part"), received, total)
    except (OSError, http.client.HTTPException, ValueError) as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"cannot download {address}: {error}") from error
