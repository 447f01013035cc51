"""Records that stay on the disk: images in folders named after their classes, decoded when they are asked for.

A record is the file that was listed. Its input is the centre square of the image, scaled to one side, as bytes; where
the bytes of the file are no image, it is black, and ``batches`` says that it counts for nothing. That is decided file
by file, from its bytes alone, so that no record changes what another adds. A run does not stop for such a file: when
it stopped would say when the record was drawn. It stops where the disk or a worker process fails, which is nobody's
record, and where a file is no longer the one that was listed, so that a step taken again is the same to the bit: before
a run begins or goes on all files are hashed (``identity``), and each that is read later is compared with its hash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lehr import validate
from lehr.data.decoders import Decoders, Job, Wait, WorkerLost
from lehr.data.decoding import MODES
from lehr.data.file_list import FileList, Numbers, listed
from lehr.data.image_folder import checked_size
from lehr.errors import BadRecord, InvalidValue, StoreError

WORKERS = 4
_FILES_AT_ONCE = 8  # that a worker is asked for: few enough that none is idle at the end of a batch
_READ_AHEAD = 32  # files for each worker, while others are computed with
_TRIED = 64


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StreamedFolder:
    """The records of a folder, none of which is held. ``read`` lists one."""

    files: FileList
    image_side: int
    channels: int
    decoders: Decoders
    places: Tensor = field(repr=False)  # of the records among the files
    device: torch.device  # where targets go; inputs follow batch by batch

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        # How many there are is private.
        side = self.image_side
        return f"StreamedFolder({self.files.folder}, inputs torch.uint8 {(self.channels, side, side)})"

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes: the label of a record is the place of its class."""
        return self.files.classes

    def batch(self, places_B: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803
        """Inputs and targets of the records at these places; what is no image is black."""
        [(inputs, targets, _)] = self.batches([places_B])
        return inputs, targets

    def batches(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, targets, and which of them are images, part by part; workers go on to the next parts meanwhile."""
        todo, begun = iter(parts), deque[_Begun]()
        at_once = 1 + self._ahead(max(map(len, parts), default=0))
        for _ in parts:
            begun.extend(self._begun(part) for part in islice(todo, at_once - len(begun)))
            yield begun.popleft().finished()

    def at(self, places: Tensor) -> Self:
        """Only the records at these places."""
        return replace(self, places=self.places[places.cpu()])

    def to(self, device: torch.device | str) -> Self:
        """The same records, with their targets on a device."""
        return replace(self, device=torch.device(device))

    def targets_to(self, device: torch.device | str) -> Self:
        """The same: inputs are held nowhere."""
        return self.to(device)

    @property
    def kind(self) -> object:
        """Records are compared file by file, before they are decoded."""
        return "image files"

    def identity(self, role: str) -> Iterator[bytes | memoryview]:
        """How they are cut, how the files are named, and what is in them: all of them are read."""
        yield f"{role} image files {self.image_side} {self.channels}".encode()
        yield self.places.numpy().data.cast("B")
        yield from self.files.identity()

    def contents(self) -> Iterator[bytes]:
        """A hash of each file, which is read whole for it: records with the same one are the same image."""
        return self.files.digests(self.places.numpy())

    def as_long_as(self, other: StreamedFolder) -> Self:
        """Only the records with as many bytes as one of the other's has: no others can be equal to one."""
        sizes = (records.files.num_bytes[records.places.numpy()] for records in (self, other))
        return self.at(torch.from_numpy(np.flatnonzero(np.isin(*sizes))))

    def spread(self, count: int) -> Self:
        """At most so many of the records, from everywhere in the list."""
        return self.at(torch.linspace(0, len(self) - 1, min(count, len(self)), dtype=torch.float64).long())

    def check(self, *, num_classes: int) -> None:
        """Refuse folders that are not the classes that were stated, and files of which a few are already no images."""
        if len(self.classes) != num_classes:
            allowed = "the number of folders: one for each class, empty where a class has no record"
            raise InvalidValue("num_classes", allowed=allowed, given=num_classes)
        for place in self.spread(_TRIED).not_images():
            name = self.files.at(int(self.spread(_TRIED).places[place])).path
            advice = f"it is no image; lehr data check {self.files.folder} finds all of these"
            raise BadRecord(name.decode(errors="replace"), reason=advice)

    def not_images(self) -> Iterator[int]:
        """The places of the records whose files are no images. All are decoded."""
        parts = torch.split(torch.arange(len(self)), _READ_AHEAD)
        for part, (_, _, is_image) in zip(parts, self.batches(parts), strict=True):
            yield from part[~is_image].tolist()

    def _ahead(self, part_size: int) -> int:
        """How many parts are decoded before they are asked for: two, or more where they are small for the workers."""
        workers = self.decoders.workers
        return max(2, _READ_AHEAD * workers // max(1, part_size)) if workers else 0

    def _begun(self, places: Tensor) -> _Begun:
        chosen, row_of = torch.unique(self.places[places.cpu()], return_inverse=True)  # padding is read once
        pixels = torch.zeros(len(chosen), self.channels, self.image_side, self.image_side, dtype=torch.uint8)
        is_image = torch.zeros(len(chosen), dtype=torch.bool)
        return _Begun(
            records=self,
            pixels=pixels,
            is_image=is_image,
            labels=torch.from_numpy(self.files.labels[chosen.numpy()]),
            row_of=row_of,
            waits=[self._started(chosen.numpy(), pixels, is_image, first) for first in _firsts(len(chosen))],
        )

    def _started(self, chosen: Numbers, pixels: Tensor, is_image: Tensor, first: int) -> Wait:
        part = slice(first, first + _FILES_AT_ONCE)
        files = [self.files.at(place) for place in chosen[part].tolist()]
        return self.decoders.start(Job(files=files, pixels=pixels[part].numpy(), is_image=is_image[part].numpy()))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Begun:
    """A part that is being decoded: every file once, and the row of each record."""

    records: StreamedFolder
    pixels: Tensor
    is_image: Tensor
    labels: Tensor
    row_of: Tensor
    waits: Sequence[Wait]

    def finished(self) -> tuple[Tensor, Tensor, Tensor]:
        """Wait until it is done. What goes wrong names the folder and no file: it may be shown to others."""
        folder, device = self.records.files.folder, self.records.device
        try:
            for wait in self.waits:
                wait()
        except WorkerLost as error:
            raise StoreError(f"cannot read {folder}: a worker process that decodes its images ended") from error
        except OSError as error:
            raise StoreError(f"cannot read {folder} as it was listed: {error.strerror}") from error
        pixels, is_image, labels = (self._by_record(rows) for rows in (self.pixels, self.is_image, self.labels))
        if device.type == "cuda":  # copied there while something else is computed
            pixels = pixels.pin_memory()
        return pixels, labels.long().to(device, non_blocking=True), is_image

    def _by_record(self, rows: Tensor) -> Tensor:
        in_order = len(rows) == len(self.row_of) and bool((self.row_of.diff() == 1).all())
        return rows if in_order else rows[self.row_of]


def _firsts(count: int) -> range:
    return range(0, count, _FILES_AT_ONCE)


def read(folder: Path, *, image_side: int, channels: int = 3, workers: int = WORKERS) -> StreamedFolder:
    """The images below ``folder``, classes and files in the order of their names, decoded by so many processes.

    With no workers they are decoded in this process; what comes out is the same. Every image is cut to the square in
    its middle and scaled to ``image_side``. ``channels`` is 3 for colour or 1 for grey.
    """
    return among(listed(folder), image_side=image_side, channels=channels, decoders=Decoders(workers))


def among(files: FileList, *, image_side: int, channels: int = 3, decoders: Decoders) -> StreamedFolder:
    """All records of a list, decoded by processes that other folders may use as well."""
    if channels not in tuple(MODES):
        raise InvalidValue("channels", allowed="1 or 3", given=channels)
    return StreamedFolder(
        files=files,
        image_side=checked_size(validate.count(image_side=image_side), image_side)[0],
        channels=channels,
        decoders=decoders,
        places=torch.arange(len(files)),
        device=torch.device("cpu"),
    )
