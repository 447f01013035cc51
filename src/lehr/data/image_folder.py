"""Records from a folder of images: one folder per class, named after the class. A label is the index of its class.

- ``read_image_folder``: all images in memory
- ``stream_image_folder``: a ``StreamedFolder``, whose images stay on disk and are decoded when they are drawn
- ``list_images``, ``FileList``: the files, in one array that stays small for millions of files

An image that is scaled is first cropped, in its middle, to the proportions of the new size. A streamed record is the
file that was listed. A file whose bytes are not an image gives a black input, and ``batches`` marks it to contribute
nothing. Each file is judged by its own bytes, so no record changes what another adds. A run does not stop for such a
file: that would reveal when the record was drawn. It stops where the disk or a worker fails, and where a file is not
the one that was listed: all files are hashed before a run begins or resumes (``identity``), and every later read is
compared with its hash, so a repeated step is bit-identical.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lehr import validate
from lehr.data import decoding
from lehr.data.decoding import MODES, MOST_BYTES, MOST_PIXELS, SUFFIXES, DecoderPool, ListedFile, WorkerDied
from lehr.data.file_content import LARGEST
from lehr.data.records import InMemory
from lehr.errors import BadRecord, InvalidValue, StoreError

DEFAULT_WORKERS = 4
_READ_AHEAD = 32  # files per worker that are decoded before they are needed
_CHECKED_FILES = 64
_HASHING_THREADS = 8
_FILES_HASHED_AT_ONCE = 1024


class ImageFolder(NamedTuple):
    """Records in memory, and the names of their classes."""

    records: InMemory
    classes: tuple[str, ...]


def read_image_folder(
    folder: Path, *, size: tuple[int, int] | None = None, channels: int = 3, at_most: int = LARGEST
) -> ImageFolder:
    """Return the images below ``folder`` as bytes of shape CHW, classes and files in the order of their names.

    All images must be of one size, unless they are scaled to ``size`` (height, width). ``channels`` is 3 for colour or
    1 for grey. Files without an image suffix are skipped; one that cannot be decoded raises ``BadRecord``. ``at_most``
    bounds the bytes of all images.
    """
    check_form(size, channels)
    files = list_images(folder)
    images = torch.empty(0, dtype=torch.uint8)
    for index in range(len(files)):
        file = files.at(index)
        path = os.fsdecode(file.path)
        try:
            pixels = decoding.decode_listed(file, channels=channels, size=size)
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        if pixels is None:
            raise BadRecord(path, reason="it cannot be decoded as an image")
        if index == 0:
            if len(files) * pixels.size > at_most:
                size_of_all = f"{len(files):,} images of {pixels.size:,} bytes"
                raise StoreError(f"cannot hold {size_of_all}: more than {at_most:,} in all")
            images = torch.empty(len(files), *pixels.shape, dtype=torch.uint8)
        if pixels.shape != images.shape[1:]:
            sizes = f"{pixels.shape[1:]}, and the first of {tuple(images.shape[2:])}"
            raise BadRecord(path, reason=f"it is of the size {sizes}; give a size to scale them to (image_side)")
        images[index] = torch.from_numpy(pixels)
    return ImageFolder(InMemory(images, torch.from_numpy(files.rows["label"].astype(np.int64))), files.classes)


def stream_image_folder(
    folder: Path, *, image_side: int, channels: int = 3, workers: int | DecoderPool = DEFAULT_WORKERS
) -> StreamedFolder:
    """Return the images below ``folder`` as records on disk, classes and files in the order of their names.

    ``workers`` processes decode them, or this process with 0; the pixels are the same. Several folders can share a
    pool. Every image is cropped to its central square and scaled to ``image_side``. ``channels`` is 3 for colour or 1
    for grey.
    """
    check_form((validate.count(image_side=image_side), image_side), channels)
    files = list_images(folder)
    return StreamedFolder(
        files=files,
        image_side=image_side,
        channels=channels,
        decoders=workers if isinstance(workers, DecoderPool) else DecoderPool(workers),
        indices=torch.arange(len(files)),
        device=torch.device("cpu"),
    )


def check_form(size: tuple[int, int] | None, channels: object) -> None:
    """Raise where images cannot be decoded to this form, or not at all without Pillow."""
    if channels not in tuple(MODES):  # a tuple, for a list is not hashable
        raise InvalidValue("channels", allowed="1 or 3", given=channels)
    if size is not None and validate.count(height=size[0]) * validate.count(width=size[1]) > MOST_PIXELS:
        raise InvalidValue("size", allowed=f"of at most {MOST_PIXELS:,} pixels", given=size)
    decoding.require_pillow()


@dataclass(frozen=True, eq=False, repr=False)
class FileList:
    """Files in the order of their classes and names, each as it was when it was listed.

    ``rows`` has the fields path (below ``folder``), label, num_bytes and changed_at (nanoseconds).
    """

    folder: Path  # as the user named it
    root: bytes  # the same, absolute
    classes: tuple[str, ...]
    rows: npt.NDArray[np.void]

    def __len__(self) -> int:
        return len(self.rows)

    def at(self, index: int) -> ListedFile:
        """Return the file at an index, with the hash of its bytes if they have been read."""
        path, _, num_bytes, changed_at = self.rows[index].item()
        digest = self._digests[index]
        path = os.path.join(self.root, path)
        return ListedFile(path, num_bytes, changed_at, digest.tobytes() if digest.any() else b"")

    def identity(self) -> Iterator[bytes | memoryview]:
        """Yield names, labels, sizes, times of change and the hash of every file, which is read whole.

        From then on, a file with other bytes is no longer the one that was listed.
        """
        yield "\0".join(self.classes).encode(errors="surrogateescape")
        yield self.rows.view(np.uint8).data
        yield from self.digests(np.arange(len(self)))

    def digests(self, indices: npt.NDArray[np.int64]) -> Iterator[bytes]:
        """Yield a hash of the bytes of each of these files; a file is read once."""
        with ThreadPoolExecutor(_HASHING_THREADS) as readers:
            for first in range(0, len(indices), _FILES_HASHED_AT_ONCE):
                part = indices[first : first + _FILES_HASHED_AT_ONCE]
                missing = part[~self._digests[part].any(axis=1)].tolist()
                for index, digest in zip(missing, readers.map(self._digest, missing), strict=True):
                    self._digests[index] = np.frombuffer(digest, np.uint8)
                yield from map(bytes, self._digests[part])

    @cached_property
    def _digests(self) -> npt.NDArray[np.uint8]:
        return np.zeros((len(self), decoding.DIGEST_BYTES), np.uint8)  # zeros where a file has not been read

    def _digest(self, index: int) -> bytes:
        try:
            with open(self.at(index).path, "rb") as file:
                return decoding.digest_of(file)
        except OSError as error:
            raise StoreError(f"cannot read {self.folder}: {error.strerror}") from error


def list_images(folder: Path) -> FileList:
    """Return the files with an image suffix below ``folder``; others are skipped. Hidden folders are no classes."""

    def refuse(error: OSError) -> None:
        raise StoreError(f"cannot read {os.fsdecode(error.filename)}: {error.strerror}") from error

    rows: list[tuple[bytes, int, int, int]] = []
    try:
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and entry.name[0] != ".")
        for label, name in enumerate(classes):
            top = os.path.join(folder, name)
            files = [os.path.join(where, file) for where, _, files in os.walk(top, onerror=refuse) for file in files]
            for path in sorted(files, key=lambda path: path.split(os.sep)):
                if os.path.splitext(path)[1].lower() not in SUFFIXES:
                    continue
                about = os.stat(path)
                if not S_ISREG(about.st_mode):  # opening a pipe would wait for a writer
                    continue
                if about.st_size > MOST_BYTES:
                    raise BadRecord(path, reason=f"it has {about.st_size:,} bytes, more than {MOST_BYTES:,}")
                rows.append((os.fsencode(name + path[len(top) :]), label, about.st_size, about.st_mtime_ns))
    except OSError as error:  # a broken link, a folder that may not be read
        refuse(error)
    except ValueError as error:  # a name with a NUL in it
        raise StoreError(f"cannot read {folder}: {error}") from error
    if not rows:
        raise StoreError(f"cannot read {folder}: it has no images in folders named after their classes")
    longest = max(len(path) for path, *_ in rows)
    fields = [("path", f"S{longest}"), ("label", "i4"), ("num_bytes", "i8"), ("changed_at", "i8")]
    root = os.fsencode(os.path.abspath(folder))
    return FileList(folder, root, tuple(classes), np.array(rows, dtype=fields))


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

    def to(self, device: torch.device | str, *, targets_only: bool = False) -> Self:
        """Return the same records, with their targets on a device."""
        return replace(self, device=torch.device(device))

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
        sizes = (records.files.rows["num_bytes"][records.indices.numpy()] for records in (self, other))
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
            path = os.fsdecode(self.files.at(int(sample.indices[index])).path)
            raise BadRecord(path, reason=f"it is not an image; find all with: lehr data check {self.files.folder}")

    def not_images(self) -> Iterator[int]:
        """Yield the indices of the records whose files are not images. All are decoded."""
        parts = torch.split(torch.arange(len(self)), _READ_AHEAD)
        for part, (_, _, is_image) in zip(parts, self.batches(parts), strict=True):
            yield from part[~is_image].tolist()

    def _start(self, indices: Tensor) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
        """Start decoding a batch, each file once; calling the result waits for it."""
        chosen, row_of = torch.unique(self.indices[indices.cpu()], return_inverse=True)  # padding is read once
        size = (self.image_side, self.image_side)
        files = [self.files.at(index) for index in chosen.tolist()]
        waits = [self.decoders.start(file, channels=self.channels, size=size) for file in files]

        def finish() -> tuple[Tensor, Tensor, Tensor]:
            """Wait until the batch is decoded. Errors name the folder and no file: others may see them."""
            images = torch.zeros(len(waits), self.channels, *size, dtype=torch.uint8)
            is_image = torch.zeros(len(waits), dtype=torch.bool)
            try:
                for row, wait in enumerate(waits):
                    if (pixels := wait()) is not None:
                        images[row], is_image[row] = torch.tensor(pixels), True
            except WorkerDied as error:
                reason = "a worker process that decodes its images ended"
                raise StoreError(f"cannot read {self.files.folder}: {reason}") from error
            except OSError as error:
                raise StoreError(f"cannot read {self.files.folder} as it was listed: {error.strerror}") from error
            inputs = images[row_of]
            if self.device.type == "cuda":  # so that the copy overlaps with computation
                inputs = inputs.pin_memory()
            labels = torch.from_numpy(self.files.rows["label"][chosen.numpy()]).long()
            return inputs, labels[row_of].to(self.device, non_blocking=True), is_image[row_of]

        return finish
