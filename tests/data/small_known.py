"""A data set of a few records, whose files a test writes itself."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from lehr.data.catalogue import DataFile, DataSetInfo, Source

NUM_TRAIN, NUM_TEST = 6, 3


def idx_bytes(*shape: int, numbers: bytes, kind: int = 0x08) -> bytes:
    """An idx file."""
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + numbers


CONTENTS = {
    "train-images": idx_bytes(NUM_TRAIN, 2, 2, numbers=bytes(range(24))),
    "train-labels": idx_bytes(NUM_TRAIN, numbers=bytes([0, 1, 2, 0, 1, 2])),
    "test-images": idx_bytes(NUM_TEST, 2, 2, numbers=bytes(range(100, 112))),
    "test-labels": idx_bytes(NUM_TEST, numbers=bytes([2, 1, 0])),
}
FILES = tuple(DataFile(name, len(content), hashlib.sha256(content).hexdigest()) for name, content in CONTENTS.items())


def known(*sources: Source) -> DataSetInfo:
    """The data set, to be had from these sources."""
    return DataSetInfo(
        name="small",
        homepage="https://example.org/",
        citation="nobody",
        records=NUM_TRAIN,
        test_records=NUM_TEST,
        num_classes=3,
        shape=(1, 2, 2),
        mean=(0.5,),
        std=(0.5,),
        reader="idx",
        folders=("Small/raw", "small"),
        train=FILES[:2],
        test=FILES[2:],
        sources=sources,
    )


def write(folder: Path, *, compressed: bool = False) -> Path:
    """Put the files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENTS.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder


def tar_bytes(
    changed: Mapping[str, bytes] = MappingProxyType({}), *, below: str = "package/data/", leave_out: str = ""
) -> bytes:
    """A compressed tar file of the files, some of them changed, and of others."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as archive:
        for name, content in {**CONTENTS, **changed}.items():
            if name != leave_out:
                member = tarfile.TarInfo(below + name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return whole.getvalue()
