"""A data set: records to train on, records to test on, and what is public about them."""

from __future__ import annotations

from dataclasses import dataclass

from lehr import validate
from lehr.data.in_memory import InMemory
from lehr.data.preparation import Preparation


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Records and the public facts that a plan may rest on.

    ``records`` is the number that is stated in public, from which the sampling probability follows. It is written
    down by whoever owns the data and is not ``len(train)``, which is private: the two may differ.
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
