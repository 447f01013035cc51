"""Records: readers for the usual formats, the known data sets, a split by record, checks before training.

- ``in_memory``, ``from_dataset``: records as tensors; any map-style ``torch.utils.data.Dataset``
- ``idx``, ``cifar``, ``cifar_python``, ``npz``, ``image_folder``: readers, over ``content``, which reads no more of a
  file than it should hold
- ``streamed_folder``: a folder that stays on the disk, over ``file_list``, a compact list of its files, and
  ``decoders``, which has them decoded (``decoding``) by worker processes (``decoder_process``)
- ``record_set``: what a run asks of its records, held or not
- ``preparation``: from stored images to what a network sees
- ``data_set``, ``known``, ``finding``, ``loading``, ``digits``: data sets with a name, found on this machine and
  verified by content
- ``downloading``, ``packages``, ``getting``: data sets fetched from elsewhere, verified the same way
- ``split``, ``overlap``, ``checking``: private, public and test records; records that two sets share; bad records
- ``augmentation``: views of an image

Each public name is fetched from its module when it is first used, so that asking where a data set is needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lehr.data.data_set import DataSet
    from lehr.data.in_memory import InMemory
    from lehr.data.loading import load
    from lehr.data.preparation import Preparation

__all__ = ["DataSet", "InMemory", "Preparation", "load"]

_HOME = {
    "DataSet": "lehr.data.data_set",
    "InMemory": "lehr.data.in_memory",
    "Preparation": "lehr.data.preparation",
    "load": "lehr.data.loading",
}


if not TYPE_CHECKING:  # a type checker that saw this would believe in every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'lehr.data' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
