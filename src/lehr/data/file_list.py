"""The image files below folders named after classes, as a list that stays small when the files are millions.

Names lie one after another in one string of bytes; all else is an array. No object is kept for a file.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from stat import S_ISREG

import numpy as np
import numpy.typing as npt

from lehr.data.decoding import DIGEST_BYTES, MOST_BYTES, SUFFIXES, Listed
from lehr.errors import BadRecord, StoreError

_READERS = 8
_AT_ONCE = 1024

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FileList:
    """Files in the order of their classes and names, each as it was when it was listed."""

    folder: Path  # as it was named
    root: bytes  # the same from everywhere
    classes: tuple[str, ...]
    names: bytes = field(repr=False)
    ends: Numbers  # of the names, in ``names``
    labels: npt.NDArray[np.int32]
    num_bytes: Numbers
    changed_at: Numbers  # nanoseconds

    def __len__(self) -> int:
        return len(self.ends)

    def at(self, place: int) -> Listed:
        """The file at a place, with the hash of its bytes where these were read."""
        path = os.path.join(self.root, self.name(place))
        digests, known = self._digests
        digest = digests[place].tobytes() if known[place] else b""
        return Listed(path, int(self.num_bytes[place]), int(self.changed_at[place]), digest)

    def name(self, place: int) -> bytes:
        """Its path below the folder."""
        first = int(self.ends[place - 1]) if place else 0
        return self.names[first : int(self.ends[place])]

    def identity(self) -> Iterator[bytes | memoryview]:
        """What tells this list from every other: names, labels, sizes, times of change, and all bytes, by their hash.

        Every file is read whole for it. From then on one whose bytes are others is no longer the one that was listed.
        """
        yield "\0".join(self.classes).encode(errors="surrogateescape")
        yield self.names
        for numbers in (self.ends, self.labels, self.num_bytes, self.changed_at):
            yield numbers.data.cast("B")
        yield from self.digests(np.arange(len(self)))

    def digests(self, places: Numbers) -> Iterator[bytes]:
        """A hash of the bytes of each of these files; a file is read once, whoever asks."""
        digests, known = self._digests
        with ThreadPoolExecutor(_READERS) as readers:
            for first in range(0, len(places), _AT_ONCE):
                part = places[first : first + _AT_ONCE]
                missing = part[~known[part]]
                for place, digest in zip(missing, readers.map(self._digest, missing.tolist()), strict=True):
                    digests[place], known[place] = np.frombuffer(digest, np.uint8), True
                yield from (digests[place].tobytes() for place in part)

    @cached_property
    def _digests(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        return np.zeros((len(self), DIGEST_BYTES), np.uint8), np.zeros(len(self), np.bool_)

    def _digest(self, place: int) -> bytes:
        try:
            with open(self.at(place).path, "rb") as file:
                return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()
        except OSError as error:
            raise StoreError(f"cannot read {self.folder}: {error.strerror}") from error


def listed(folder: Path) -> FileList:
    """The image files below ``folder``, by their names; what is no image by its name is passed over."""
    names, labels = bytearray(), array("i")
    ends, num_bytes, changed_at = array("q"), array("q"), array("q")
    classes = class_names(folder)
    for label, name in enumerate(classes):
        top = os.path.join(folder, name)
        for path in _images_below(top):
            about = _about(path)
            if not S_ISREG(about.st_mode):  # opening a pipe would wait for somebody to write into it
                continue
            if about.st_size > MOST_BYTES:
                raise BadRecord(path, reason=f"it has {about.st_size:,} bytes, more than {MOST_BYTES:,}")
            names += os.fsencode(name + path[len(top) :])
            for column, value in ((ends, len(names)), (num_bytes, about.st_size), (changed_at, about.st_mtime_ns)):
                column.append(value)
            labels.append(label)
    if not labels:
        raise StoreError(f"cannot read {folder}: it has no images in folders named after their classes")
    return FileList(
        folder=folder,
        root=os.fsencode(os.path.abspath(folder)),
        classes=classes,
        names=bytes(names),
        ends=np.array(ends, np.int64),
        labels=np.array(labels, np.int32),
        num_bytes=np.array(num_bytes, np.int64),
        changed_at=np.array(changed_at, np.int64),
    )


def _about(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:  # a link that leads nowhere
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def class_names(folder: Path) -> tuple[str, ...]:
    """The folders directly below, in the order of their names; hidden ones are passed over."""
    try:
        return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."))
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise StoreError(f"cannot read {folder}: {getattr(error, 'strerror', error)}") from error


def images_below(folder: Path) -> list[Path]:
    """The files that are images by their names, however deep, in order."""
    return list(map(Path, _images_below(os.fspath(folder))))


def _images_below(folder: str) -> list[str]:
    def refuse(error: OSError) -> None:
        raise StoreError(f"cannot read {error.filename}: {error.strerror}") from error

    found = [
        os.path.join(where, name)
        for where, _, names in os.walk(folder, onerror=refuse)
        for name in names
        if os.path.splitext(name)[1].lower() in SUFFIXES
    ]
    return sorted(found, key=lambda path: path.split(os.sep))
