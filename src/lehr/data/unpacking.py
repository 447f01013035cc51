"""The files of a data set taken out of a tar archive, by their names, each verified before it gets its name.

Nothing else of the archive is written, and no path in it is followed.
"""

from __future__ import annotations

import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from lehr.data import content, finding
from lehr.data.known import KnownFile, Layout
from lehr.errors import StoreError

_GZIP_AT_MOST = 1024**2  # what compression can add at the very most to a file that it does not shrink


def take(archive: IO[bytes], layout: Layout, folder: Path, *, name: str) -> None:
    """Put all files of the layout that the archive holds into the folder. Raises ``StoreError`` if one is missing."""
    wanted = {name: file for file in layout.files for name in (file.name, f"{file.name}.gz")}
    missing = {file.name for file in layout.files}
    with _failing_by_name(name), tarfile.open(fileobj=archive, mode="r|*") as members:
        for member in members:
            file = wanted.get(PurePosixPath(member.name).name)
            if file is None or file.name not in missing or not member.isreg():
                continue
            stream = members.extractfile(member)
            if stream is not None:
                _put(stream, file, folder / PurePosixPath(member.name).name)
                missing.remove(file.name)
    if missing:
        raise StoreError(f"cannot use {name}: it does not hold {', '.join(sorted(missing))}")


def most_bytes(file: KnownFile) -> int:
    """How long a file can be as it is stored, compressed or not."""
    return (file.num_bytes or finding.LARGEST_UNKNOWN) + _GZIP_AT_MOST


def settle(part: Path, file: KnownFile, target: Path) -> None:
    """Give a file its name if its content is genuine; remove it otherwise."""
    try:
        finding.verified(file, part)
    except StoreError:
        part.unlink(missing_ok=True)
        raise
    os.replace(part, target)


def _put(stream: IO[bytes], file: KnownFile, target: Path) -> None:
    part = target.with_name(f"{target.name}.part")
    with open(part, "wb") as copy:
        for chunk in content.chunks(stream, at_most=most_bytes(file)):
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    settle(part, file, target)


@contextmanager
def _failing_by_name(name: str) -> Iterator[None]:
    try:
        yield
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        TypeError,
        ValueError,
    ) as error:  # what tarfile lets through
        raise StoreError(f"cannot use {name}: it is truncated, damaged or no tar archive ({error})") from error
