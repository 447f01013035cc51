"""Records from a folder of images: one folder per class, named after the class. A label is the index of its class.

- ``read_image_folder``: all images in memory
- ``stream_image_folder``: a ``StreamedFolder``, whose images stay on disk and are decoded when they are drawn
- ``FileList``: its files, as a few arrays that stay small for millions of files

A streamed record is the file that was listed. Its input is the centre square of the image, scaled, as bytes. A file
whose bytes are not an image gives a black input, and ``batches`` marks it to contribute nothing. Each file is judged
by its own bytes, so no record changes what another adds. A run does not stop for such a file: that would reveal when
the record was drawn. It stops where the disk or a worker fails, and where a file is not the one that was listed: all
files are hashed before a run begins or resumes (``identity``), and every later read is compared with its hash, so a
repeated step is bit-identical.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lehr import validate
from lehr.data import decoding
from lehr.data.decoding import (
    DIGEST_BYTES,
    MODES,
    MOST_BYTES,
    MOST_PIXELS,
    SUFFIXES,
    DecodeJob,
    DecoderPool,
    ListedFile,
    WorkerDied,
)
from lehr.data.file_content import LARGEST
from lehr.data.records import InMemory
from lehr.errors import BadRecord, InvalidValue, StoreError
from lehr.files import atomic

DEFAULT_WORKERS = 4
_FILES_PER_JOB = 8  # few enough that no worker is idle at the end of a batch
_READ_AHEAD = 32  # files per worker that are decoded before they are needed
_CHECKED_FILES = 64
_HASHING_THREADS = 8
_FILES_HASHED_AT_ONCE = 1024
_NO_IMAGES = "it has no images in folders named after their classes"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ImageFolder:
    """Records in memory, and the names of their classes."""

    records: InMemory
    classes: tuple[str, ...]


def read_image_folder(
    folder: Path, *, size: tuple[int, int] | None = None, channels: int = 3, at_most: int = LARGEST
) -> ImageFolder:
    """Return the images below ``folder`` as bytes of shape CHW, classes and files in the order of their names.

    All images must be of one size, unless they are scaled to ``size`` (height, width). ``channels`` is 3 for colour or
    1 for grey. Files without an image suffix are skipped; one that cannot be decoded raises ``BadRecord``.
    """
    _check_channels(channels)
    size = None if size is None else check_size(*size)
    decoding.require_pillow()
    classes = class_names(folder)
    found = [(Path(path), label) for label, name in enumerate(classes) for path in _images_below(folder / name)]
    if not found:
        raise StoreError(f"cannot read {folder}: {_NO_IMAGES}")
    images = None
    for index, (path, _) in enumerate(found):
        try:
            with atomic.opened(path, at_most=MOST_BYTES) as file:
                image = torch.from_numpy(decoding.decode(file, channels=channels, size=size))
        except Exception as error:  # a decoder of a hostile file can fail in any way
            raise BadRecord(path, reason=f"it cannot be decoded as an image ({error})") from error
        if images is None:
            if len(found) * image.numel() > at_most:
                size_of_all = f"{len(found):,} images of {image.numel():,} bytes"
                raise StoreError(f"cannot hold {size_of_all}: more than {at_most:,} in all")
            images = torch.empty(len(found), *image.shape, dtype=torch.uint8)
        if image.shape != images.shape[1:]:
            sizes = f"{tuple(image.shape[1:])}, and {found[0][0]} of {tuple(images.shape[2:])}"
            raise BadRecord(path, reason=f"it is of the size {sizes}; give a size to scale them to (image_side)")
        images[index] = image
    assert images is not None
    return ImageFolder(InMemory(images, torch.tensor([label for _, label in found])), classes)


def stream_image_folder(
    folder: Path, *, image_side: int, channels: int = 3, workers: int = DEFAULT_WORKERS
) -> StreamedFolder:
    """Return the images below ``folder`` as records on disk, classes and files in the order of their names.

    ``workers`` processes decode them, or this process with 0; the pixels are the same. Every image is cropped to its
    central square and scaled to ``image_side``. ``channels`` is 3 for colour or 1 for grey.
    """
    return stream_files(list_images(folder), image_side=image_side, channels=channels, decoders=DecoderPool(workers))


def stream_files(files: FileList, *, image_side: int, channels: int = 3, decoders: DecoderPool) -> StreamedFolder:
    """Return all records of a list, decoded by a pool that other folders may share."""
    _check_channels(channels)
    decoding.require_pillow()
    return StreamedFolder(
        files=files,
        image_side=check_size(validate.count(image_side=image_side), image_side)[0],
        channels=channels,
        decoders=decoders,
        indices=torch.arange(len(files)),
        device=torch.device("cpu"),
    )


def check_size(height: object, width: object) -> tuple[int, int]:
    """Return the size that images are scaled to, or raise ``InvalidValue`` where it has too many pixels."""
    size = validate.count(height=height), validate.count(width=width)
    if size[0] * size[1] > MOST_PIXELS:
        raise InvalidValue("size", allowed=f"of at most {MOST_PIXELS:,} pixels", given=f"{height} × {width}")
    return size


def _check_channels(channels: object) -> None:
    if channels not in tuple(MODES):  # a tuple, for a list is not hashable
        raise InvalidValue("channels", allowed="1 or 3", given=channels)


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the folders directly below, sorted, without hidden ones."""
    try:
        return tuple(sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != "."))
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise StoreError(f"cannot read {folder}: {getattr(error, 'strerror', error)}") from error


def _images_below(folder: str | Path) -> list[str]:
    """Return all files with an image suffix, however deep, sorted."""

    def refuse(error: OSError) -> None:
        raise StoreError(f"cannot read {error.filename}: {error.strerror}") from error

    found = [
        os.path.join(where, name)
        for where, _, names in os.walk(folder, onerror=refuse)
        for name in names
        if os.path.splitext(name)[1].lower() in SUFFIXES
    ]
    return sorted(found, key=lambda path: path.split(os.sep))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FileList:
    """Files in the order of their classes and names, each as it was when it was listed."""

    folder: Path  # as the user named it
    root: bytes  # absolute
    classes: tuple[str, ...]
    names: bytes = field(repr=False)  # one after another
    ends: Numbers  # of each name in ``names``
    labels: npt.NDArray[np.int32]
    num_bytes: Numbers
    changed_at: Numbers  # nanoseconds

    def __len__(self) -> int:
        return len(self.ends)

    def at(self, index: int) -> ListedFile:
        """Return the file at an index, with the hash of its bytes if they have been read."""
        first = int(self.ends[index - 1]) if index else 0
        path = os.path.join(self.root, self.names[first : int(self.ends[index])])
        digests, known = self._digests
        digest = digests[index].tobytes() if known[index] else b""
        return ListedFile(path, int(self.num_bytes[index]), int(self.changed_at[index]), digest)

    def identity(self) -> Iterator[bytes | memoryview]:
        """Yield names, labels, sizes, times of change and the hash of every file, which is read whole.

        From then on, a file with other bytes is no longer the one that was listed.
        """
        yield "\0".join(self.classes).encode(errors="surrogateescape")
        yield self.names
        for numbers in (self.ends, self.labels, self.num_bytes, self.changed_at):
            yield numbers.data.cast("B")
        yield from self.digests(np.arange(len(self)))

    def digests(self, indices: Numbers) -> Iterator[bytes]:
        """Yield a hash of the bytes of each of these files; a file is read once."""
        digests, known = self._digests
        with ThreadPoolExecutor(_HASHING_THREADS) as readers:
            for first in range(0, len(indices), _FILES_HASHED_AT_ONCE):
                part = indices[first : first + _FILES_HASHED_AT_ONCE]
                missing = part[~known[part]]
                for index, digest in zip(missing, readers.map(self._digest, missing.tolist()), strict=True):
                    digests[index], known[index] = np.frombuffer(digest, np.uint8), True
                yield from (digests[index].tobytes() for index in part)

    @cached_property
    def _digests(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        return np.zeros((len(self), DIGEST_BYTES), np.uint8), np.zeros(len(self), np.bool_)

    def _digest(self, index: int) -> bytes:
        try:
            with open(self.at(index).path, "rb") as file:
                return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()
        except OSError as error:
            raise StoreError(f"cannot read {self.folder}: {error.strerror}") from error


def list_images(folder: Path) -> FileList:
    """Return the files with an image suffix below ``folder``; others are skipped."""
    names, labels = bytearray(), array("i")
    ends, num_bytes, changed_at = array("q"), array("q"), array("q")
    classes = class_names(folder)
    for label, name in enumerate(classes):
        top = os.path.join(folder, name)
        for path in _images_below(top):
            try:
                status = os.stat(path)
            except OSError as error:  # a broken link
                raise StoreError(f"cannot read {path}: {error.strerror}") from error
            if not S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
                continue
            if status.st_size > MOST_BYTES:
                raise BadRecord(path, reason=f"it has {status.st_size:,} bytes, more than {MOST_BYTES:,}")
            names += os.fsencode(name + path[len(top) :])
            for column, value in ((ends, len(names)), (num_bytes, status.st_size), (changed_at, status.st_mtime_ns)):
                column.append(value)
            labels.append(label)
    if not labels:
        raise StoreError(f"cannot read {folder}: {_NO_IMAGES}")
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


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StreamedFolder:
    """The records of a folder, left on disk. Built by ``stream_image_folder``."""

    files: FileList
    image_side: int
    channels: int
    decoders: DecoderPool
    indices: Tensor = field(repr=False)  # of the records among the files
    device: torch.device  # of the targets; inputs follow batch by batch

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        # The number of records is private.
        side = self.image_side
        return f"StreamedFolder({self.files.folder}, inputs torch.uint8 {(self.channels, side, side)})"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.files.classes

    def batch(self, indices_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the records at these indices; files that are not images are black."""
        [(inputs, targets, _)] = self.batches([indices_B])
        return inputs, targets

    def batches(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield inputs, targets and which of them are images, part by part; workers decode the next parts meanwhile."""
        todo, started = iter(parts), deque[Callable[[], tuple[Tensor, Tensor, Tensor]]]()
        workers, largest = self.decoders.workers, max(map(len, parts), default=0)
        ahead = max(2, _READ_AHEAD * workers // max(1, largest)) if workers else 0  # more where parts are small
        for _ in parts:
            started.extend(self._start(part) for part in islice(todo, 1 + ahead - len(started)))
            yield started.popleft()()

    def at(self, indices: Tensor) -> Self:
        """Return the records at these indices."""
        return replace(self, indices=self.indices[indices.cpu()])

    def to(self, device: torch.device | str) -> Self:
        """Return the same records, with their targets on a device."""
        return replace(self, device=torch.device(device))

    def targets_to(self, device: torch.device | str) -> Self:
        """Return the same as ``to``."""
        return self.to(device)

    @property
    def kind(self) -> object:
        """Records are compared by the bytes of their files."""
        return "image files"

    def identity(self, role: str) -> Iterator[bytes | memoryview]:
        """Yield image size, indices, and names and hashes of all files, which are read whole."""
        yield f"{role} image files {self.image_side} {self.channels}".encode()
        yield self.indices.numpy().data.cast("B")
        yield from self.files.identity()

    def contents(self) -> Iterator[bytes]:
        """Yield a hash of each file, which is read whole."""
        return self.files.digests(self.indices.numpy())

    def possible_duplicates(self, other: StreamedFolder) -> Self:
        """Return the records with as many bytes as one of the other's."""
        sizes = (records.files.num_bytes[records.indices.numpy()] for records in (self, other))
        return self.at(torch.from_numpy(np.flatnonzero(np.isin(*sizes))))

    def sample(self, count: int) -> Self:
        """Return at most ``count`` records, spread over the list."""
        return self.at(torch.linspace(0, len(self) - 1, min(count, len(self)), dtype=torch.float64).long())

    def check(self, *, num_classes: int) -> None:
        """Raise where the folders do not match the stated classes, or where a sampled file is not an image."""
        if len(self.classes) != num_classes:
            allowed = "the number of folders: one for each class, empty where a class has no record"
            raise InvalidValue("num_classes", allowed=allowed, given=num_classes)
        sample = self.sample(_CHECKED_FILES)
        for index in sample.not_images():
            path = self.files.at(int(sample.indices[index])).path
            advice = f"it is not an image; find all of these with: lehr data check {self.files.folder}"
            raise BadRecord(path.decode(errors="replace"), reason=advice)

    def not_images(self) -> Iterator[int]:
        """Yield the indices of the records whose files are not images. All are decoded."""
        parts = torch.split(torch.arange(len(self)), _READ_AHEAD)
        for part, (_, _, is_image) in zip(parts, self.batches(parts), strict=True):
            yield from part[~is_image].tolist()

    def _start(self, indices: Tensor) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
        """Start decoding a batch, each file once; calling the result waits for it."""
        chosen, row_of = torch.unique(self.indices[indices.cpu()], return_inverse=True)  # padding is read once
        pixels = torch.zeros(len(chosen), self.channels, self.image_side, self.image_side, dtype=torch.uint8)
        is_image = torch.zeros(len(chosen), dtype=torch.bool)
        waits = []
        for first in range(0, len(chosen), _FILES_PER_JOB):
            part = slice(first, first + _FILES_PER_JOB)
            files = [self.files.at(index) for index in chosen[part].tolist()]
            job = DecodeJob(files=files, pixels=pixels[part].numpy(), is_image=is_image[part].numpy())
            waits.append(self.decoders.start(job))
        labels = torch.from_numpy(self.files.labels[chosen.numpy()])

        def finish() -> tuple[Tensor, Tensor, Tensor]:
            """Wait until the batch is decoded. Errors name the folder and no file: others may see them."""
            try:
                for wait in waits:
                    wait()
            except WorkerDied as error:
                reason = "a worker process that decodes its images ended"
                raise StoreError(f"cannot read {self.files.folder}: {reason}") from error
            except OSError as error:
                raise StoreError(f"cannot read {self.files.folder} as it was listed: {error.strerror}") from error
            rows = (pixels, is_image, labels)
            in_order = len(pixels) == len(row_of) and bool((row_of.diff() == 1).all())
            inputs, are_images, targets = rows if in_order else (each[row_of] for each in rows)
            if self.device.type == "cuda":  # so that the copy overlaps with computation
                inputs = inputs.pin_memory()
            return inputs, targets.long().to(self.device, non_blocking=True), are_images

        return finish
