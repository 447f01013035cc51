"""A known data set from the files on this machine, verified by content on the way in."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from lehr.data import cifar, cifar_python, digits, finding, idx
from lehr.data.data_set import DataSet
from lehr.data.finding import Found
from lehr.data.in_memory import InMemory
from lehr.data.known import KnownDataSet, KnownFile, Layout, named
from lehr.data.preparation import Preparation
from lehr.errors import StoreError

Part: TypeAlias = Sequence[tuple[Path, bytearray]]


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> DataSet:
    """The data set of that name, from ``data_dir`` or wherever it is found. Raises ``StoreError`` if it is nowhere.

    >>> digits = load("digits")
    >>> digits.records, digits.shape, digits.num_classes
    (1464, (1, 8, 8), 10)
    """
    known = named(name)
    train, test = _found_records(known, data_dir) if known.layouts else digits.read()
    return DataSet(
        name=known.name,
        train=train,
        test=test,
        num_classes=known.num_classes,
        shape=known.shape,
        preparation=Preparation(mean=known.mean, std=known.std),
        records=known.records,
    )


def whats_missing(layout: Layout) -> str:
    """The files of a data set, by which they can be told."""
    return ", ".join(f"{file.name} ({_told_by(file)})" for file in layout.files)


def _told_by(file: KnownFile) -> str:
    size = "" if file.num_bytes is None else f"{file.num_bytes:,} bytes"
    return ", ".join(part for part in (size, file.md5 and f"md5 {file.md5}") if part)


def _found_records(known: KnownDataSet, data_dir: str | os.PathLike[str] | None) -> tuple[InMemory, InMemory]:
    rejected = []
    for found in finding.candidates(known, data_dir):
        try:
            return _records(found, found.layout.train), _records(found, found.layout.test)
        except StoreError as error:
            rejected.append(str(error))
    folder = (finding.named_folders(data_dir) or [finding.cache()])[0]
    layout = known.layouts[0]
    raise StoreError(
        f"{known.name} is not on this machine. Get it with `lehr data get {known.name}`, or put these files, "
        f"uncompressed or with .gz, into {folder / layout.folders[0]}: {whats_missing(layout)}"
        + "".join(f"; {reason}" for reason in rejected)
    )


def _records(found: Found, files: Sequence[KnownFile]) -> InMemory:
    return _READERS[found.layout.reader]([(found.paths[file.name], found.content(file)) for file in files])


def _idx(part: Part) -> InMemory:
    images, labels = (idx.parsed(whole, path=path) for path, whole in part)
    return InMemory(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _binary(num_labels: int) -> Callable[[Part], InMemory]:
    return lambda part: _joined([cifar.parsed(whole, num_labels=num_labels, path=path) for path, whole in part])


def _pickled(labels: str) -> Callable[[Part], InMemory]:
    return lambda part: _joined([cifar_python.parsed(whole, labels=labels, path=path) for path, whole in part])


def _joined(parts: Sequence[InMemory]) -> InMemory:
    return InMemory(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]))


_READERS: dict[str, Callable[[Part], InMemory]] = {
    "idx": _idx,
    "cifar-10-binary": _binary(1),
    "cifar-10-python": _pickled("labels"),
    "cifar-100-binary": _binary(2),
    "cifar-100-python": _pickled("fine_labels"),
}
