"""Records: readers for the usual formats, built-in data sets, splits, checks before training, augmentation.

- ``records``: ``InMemory``, any map-style torch ``Dataset``, checks, and comparison of sets
- ``readers``: npz, idx and CIFAR files, over ``file_content``, which bounds what is read
- ``image_folder``: folders of images, in memory or streamed from disk, over ``decoding``, which runs worker processes
- ``data_set``, ``catalogue``, ``download``: built-in data sets, on this machine or downloaded, verified by content
- ``preparation``: normalisation; ``split``: private, public and test records; ``private_pca``: private components
- ``augmentation``: views of an image, in training and in prediction

Public names are imported when first used, so that looking for a data set needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lehr.data.data_set import DataSet, load
    from lehr.data.preparation import Preparation
    from lehr.data.records import InMemory

_HOME = {"DataSet": "data_set", "InMemory": "records", "Preparation": "preparation", "load": "data_set"}
__all__ = [
    "DataSet",
    "InMemory",
    "Preparation",
    "augmentation",
    "catalogue",
    "image_folder",
    "load",
    "readers",
    "records",
    "split",
]

if not TYPE_CHECKING:  # a type checker that saw this would believe in every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'lehr.data' has no attribute {name!r}")
        globals()[name] = getattr(import_module(f"lehr.data.{_HOME[name]}"), name)
        return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
