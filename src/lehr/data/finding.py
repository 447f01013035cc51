"""Where data sets are looked for on this machine, and whether what lies there is what it should be.

In this order: the folder that was given, those named by the variable ``LEHR_DATA``, ``data`` and ``datasets`` below
the current folder and below the home folder (where torchvision is usually told to put them), Lehr's own cache, and
Debian's folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lehr.data import content
from lehr.data.known import KnownDataSet, KnownFile, Layout
from lehr.errors import StoreError

VARIABLE = "LEHR_DATA"
LARGEST_UNKNOWN = content.LARGEST // 8  # of a file whose size is not known
_DEBIAN = Path("/usr/share/datasets")
_USUAL = ("data", "datasets", "~/data", "~/datasets", "~/.cache/torchvision", "~/.cache/torch/datasets")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A folder that has all files of a layout by name; their content is not looked at yet."""

    layout: Layout
    folder: Path
    paths: Mapping[str, Path]

    def content(self, file: KnownFile) -> bytearray:
        """The content of one of the files, verified."""
        return verified(file, self.paths[file.name])


def cache() -> Path:
    """The folder that new data sets are put into where no other is given."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "lehr"


def named_folders(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders that somebody named: these may be a data set's own folder as well as one above it."""
    given = [] if data_dir is None else [os.fspath(data_dir)]
    listed = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [_expanded(folder) for folder in [*given, *listed] if folder]


def usual_folders() -> list[Path]:
    """The folders that are looked through without being named."""
    return [*map(_expanded, _USUAL), cache(), _DEBIAN]


def candidates(known: KnownDataSet, data_dir: str | os.PathLike[str] | None = None) -> Iterator[Found]:
    """Every folder that has all files of a data set by name, in order."""
    for layout, folder in _folders(known, data_dir):
        paths = {file.name: path for file in layout.files if (path := _present(folder, file.name)) is not None}
        if len(paths) == len(layout.files):
            yield Found(layout=layout, folder=folder, paths=paths)


def first_genuine(known: KnownDataSet, data_dir: str | os.PathLike[str] | None = None) -> Found | None:
    """The first folder whose files also have the right content."""
    return next((found for found in candidates(known, data_dir) if wrong(found) is None), None)


def wrong(found: Found) -> str | None:
    """What is wrong with the content of the files, or nothing."""
    try:
        for file in found.layout.files:
            found.content(file)
    except StoreError as error:
        return str(error)
    return None


def is_genuine(file: KnownFile, path: Path) -> bool:
    """Whether a file has the content that it should have."""
    try:
        verified(file, path)
    except StoreError:
        return False
    return True


def verified(file: KnownFile, path: Path) -> bytearray:
    """The content of a file, after its size and its hashes have been compared with what is known."""
    if file.num_bytes is None:
        whole = content.read_up_to(path, at_most=LARGEST_UNKNOWN)
    else:
        whole = content.read(path, num_bytes=file.num_bytes)
    for name, expected in (("sha256", file.sha256), ("md5", file.md5)):
        given = None if expected is None else hashlib.new(name, whole, usedforsecurity=False).hexdigest()
        if given != expected:
            raise StoreError(f"cannot use {path}: its content has the {name} {given}, not {expected}")
    return whole


def _folders(known: KnownDataSet, data_dir: str | os.PathLike[str] | None) -> Iterator[tuple[Layout, Path]]:
    named = named_folders(data_dir)
    for root in dict.fromkeys([*named, *usual_folders()]):  # one folder can be named twice
        for layout in known.layouts:
            yield from ((layout, root / below) for below in layout.folders)
            if root in named:
                yield layout, root


def _present(folder: Path, name: str) -> Path | None:
    try:
        return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    except OSError:  # a folder that may not be looked into
        return None


def _expanded(folder: str) -> Path:
    return Path(os.path.expanduser(folder)).absolute()
