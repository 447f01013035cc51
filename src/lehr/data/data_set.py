"""A data set: training and test records with the public facts about them; ``load`` reads a known one."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lehr import validate
from lehr.data import catalogue
from lehr.data.catalogue import DataFile, DataSetInfo, LocalCopy, PathLike, data_set_info
from lehr.data.preparation import Preparation
from lehr.data.readers import parse_cifar, parse_idx
from lehr.data.records import InMemory
from lehr.errors import StoreError

_DIGITS_SHA256 = "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"
_DIGITS_MAXIMUM = 16
_DIGITS_TEST_BELOW = 51  # of the 256 values of the first byte of a hash: a fifth of the records


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Records and the public facts that a plan may use.

    ``records`` is the publicly stated number, which determines the sampling probability. The owner of the data states
    it; it need not equal ``len(train)``, which is private.
    """

    name: str
    train: InMemory
    test: InMemory
    num_classes: int
    shape: tuple[int, ...]
    preparation: Preparation
    records: int

    def __post_init__(self) -> None:
        validate.text(name=self.name)
        validate.count(num_classes=self.num_classes)
        validate.count(records=self.records)


def load(name: str, data_dir: PathLike | None = None) -> DataSet:
    """Return a built-in data set, from ``data_dir`` or wherever it is found. Raises ``StoreError`` if it is nowhere.

    >>> digits = load("digits")
    >>> digits.records, digits.shape, digits.num_classes
    (1464, (1, 8, 8), 10)
    """
    info = data_set_info(name)
    train, test = _read_copy(info, data_dir) if info.files else read_digits()
    return DataSet(
        name=info.name,
        train=train,
        test=test,
        num_classes=info.num_classes,
        shape=info.shape,
        preparation=Preparation(mean=info.mean, std=info.std),
        records=info.records,
    )


def read_digits() -> tuple[InMemory, InMemory]:
    """Return training and test records of the 1,797 digits of 8 × 8 pixels that ship with Lehr.

    A hash of each image decides between training and test, so the split is the same everywhere.
    """
    content = lzma.decompress(Path(__file__).with_name("digits.xz").read_bytes())
    if hashlib.sha256(content).hexdigest() != _DIGITS_SHA256:
        raise StoreError("cannot use the digits that ship with Lehr: the file has been changed")
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 65).copy()
    is_test = torch.tensor([hashlib.sha256(bytes(row[:-1])).digest()[0] < _DIGITS_TEST_BELOW for row in rows])
    inputs = torch.from_numpy(rows[:, :-1]).view(-1, 1, 8, 8).to(torch.float32) / _DIGITS_MAXIMUM
    targets = torch.from_numpy(rows[:, -1]).to(torch.int64)
    return InMemory(inputs[~is_test], targets[~is_test]), InMemory(inputs[is_test], targets[is_test])


def _read_copy(info: DataSetInfo, data_dir: PathLike | None) -> tuple[InMemory, InMemory]:
    problems = []
    for copy in catalogue.local_copies(info, data_dir):
        try:
            return _read_files(copy, info.train), _read_files(copy, info.test)
        except StoreError as error:
            problems.append(str(error))
    advice = f"{info.name} is not on this machine. {catalogue.how_to_get(info, data_dir)}"
    raise StoreError("; ".join([advice, *problems]))


def _read_files(copy: LocalCopy, files: Sequence[DataFile]) -> InMemory:
    contents = [(copy.paths[file], file.read(copy.paths[file])) for file in files]
    if copy.info.reader == "idx":
        images, labels = (parse_idx(content, path=path) for path, content in contents)
        return InMemory(torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))
    num_labels = {"cifar-10": 1, "cifar-100": 2}[copy.info.reader]
    parts = [parse_cifar(content, num_labels=num_labels, path=path) for path, content in contents]
    return InMemory(torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts]))
