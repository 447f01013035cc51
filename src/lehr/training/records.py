"""Whatever was handed over as data, as records that were looked at before anything is spent.

What is private, what is public and what is scored on is decided here. Records that acceptance looks at and records
that are scored on never overlap; records that are held out are assigned one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lehr import validate
from lehr.data import DataSet, InMemory, Preparation, load
from lehr.data.decoding import versions
from lehr.data.image_folder import StreamedFolder
from lehr.data.records import RecordSet, check_trainable, is_mostly_in, overlap, read_dataset
from lehr.data.split import Split
from lehr.errors import BadRecord, InvalidValue
from lehr.planning.plan import DECLARED, PRIVATE
from lehr.privacy.rng import RunKey


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecords:
    """The records of a run and what is public about them. ``records`` is stated, and never a length that was read."""

    name: str
    private: RecordSet
    records: int
    num_classes: int
    preparation: Preparation
    test: RecordSet | None = None  # declared public, scored on
    public: RecordSet | None = None  # declared public, seen by acceptance
    held_out: RecordSet | None = None  # private, scored on with noise
    declared: str = PRIVATE  # by the user: whether those that are trained on need protection

    def fingerprint(self, key: RunKey) -> str:
        """A keyed hash of everything, which says to nobody else whether two runs had the same records."""
        named = (("private", self.private), ("test", self.test), ("public", self.public))
        return key.fingerprint(chunk for name, part in named if part for chunk in part.identity(name))

    @property
    def like(self) -> tuple[Tensor, Tensor]:
        """An input and a target of nobody: of their shapes and types, with no record in them."""
        inputs, targets = self.private.batch(torch.zeros(0, dtype=torch.int64))
        assert isinstance(inputs, Tensor)
        return inputs, targets

    @property
    def decoded_by(self) -> dict[str, str]:
        """What makes inputs of files, where that is done during the run: its versions may decide a bit."""
        parts = (self.private, self.test, self.public, self.held_out)
        return {"decoders": versions()} if any(isinstance(part, StreamedFolder) for part in parts) else {}

    def with_acceptance(self, parts: Split) -> RunRecords:
        """With a part of the test records for acceptance instead."""
        assert self.test is not None
        return replace(self, test=self.test.at(parts.private), public=self.test.at(parts.public))

    def with_held_out(self, parts: Split) -> RunRecords:
        """With a part of the private records kept out of training, for noisy scores."""
        return replace(self, private=self.private.at(parts.private), held_out=self.private.at(parts.test))

    def to(self, device: torch.device) -> RunRecords:
        """All of them on the device; where they do not fit, the labels alone, and inputs follow batch by batch."""
        try:
            return self._each(lambda part: part.to(device))
        except torch.OutOfMemoryError:
            return self._each(lambda part: part.to(device, targets_only=True))

    def _each(self, change: Callable[[RecordSet], RecordSet]) -> RunRecords:
        names = ("private", "test", "public", "held_out")
        parts: dict[str, Any] = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {name: change(part) for name, part in parts.items() if part is not None}
        return replace(self, **changed)


def check_records(
    data: object,
    *,
    records: int | None,
    test: object,
    public: object,
    num_classes: int | None,
    preparation: Preparation | None,
    name: str | None,
    dtype: torch.dtype = torch.float32,
    declared: str = PRIVATE,
) -> RunRecords:
    """The records of a run, each looked at once: a bad one is named now and not after an hour.

    ``dtype`` is the model's: inputs that are floating point numbers of another type are converted once, here.
    """
    known = load(data) if isinstance(data, str) else data
    if isinstance(known, DataSet):
        records = known.records if records is None else records
        num_classes = known.num_classes if num_classes is None else num_classes
        name, preparation = name or known.name, preparation or known.preparation
        data, test = known.train, known.test if test is None else test
    if records is None:
        allowed = "the number of records, which you state in public (len(data) is private)"
        raise InvalidValue("records", allowed=allowed, given=None)
    if num_classes is None:
        raise InvalidValue("num_classes", allowed="stated where the data set does not say it", given=None)
    found = RunRecords(
        name=name or "unnamed",
        private=_checked(data, num_classes, "data", dtype),
        records=validate.count(records=records),
        num_classes=validate.count(num_classes=num_classes),
        preparation=preparation or Preparation(),
        test=None if test is None else _checked(test, num_classes, "test", dtype),
        public=None if public is None else _checked(public, num_classes, "public", dtype),
        declared=validate.one_of(DECLARED, declared=declared),
    )
    _refuse_other_shapes(found)
    _refuse_overlap(found)
    return found


def _checked(data: object, num_classes: int, name: str, dtype: torch.dtype) -> RecordSet:
    if isinstance(data, StreamedFolder):  # of what is not held, no more than a few records are looked at
        data.check(num_classes=num_classes)
        return data
    held = _in_memory(data, name)
    if held.inputs.is_floating_point():  # before it is looked at: a large number may be none in the model's type
        held = InMemory(held.inputs.to(dtype), held.targets)
    try:
        check_trainable(held, num_classes=num_classes)
    except BadRecord as error:
        if name == "data":
            raise
        raise BadRecord(f"{error.record} of {name}", reason=error.reason) from error
    # What one label for each record is stored as is an accident of a file; losses take it as int64 alone.
    return InMemory(held.inputs, held.targets.long() if held.targets.ndim == 1 else held.targets)


def _in_memory(data: object, name: str) -> InMemory:
    match data:
        case InMemory():
            return data
        case (Tensor() as inputs, Tensor() as targets):
            return InMemory(inputs, targets)
        case Dataset():
            return read_dataset(data)
        case _:
            allowed = "a data set, its name, a pair of tensors, a torch Dataset or a streamed folder"
            raise InvalidValue(name, allowed=allowed, given=type(data).__name__)


def _refuse_other_shapes(found: RunRecords) -> None:
    expected = tuple(found.like[0].shape[1:])
    for name, part in (("test", found.test), ("public", found.public)):
        given = expected if part is None else tuple(replace(found, private=part).like[0].shape[1:])
        if given != expected:
            raise InvalidValue(name, allowed=f"records of shape {expected}, as those trained on are", given=given)


def _refuse_overlap(found: RunRecords) -> None:
    """Refuse to score on what acceptance saw, or, taken for public, on what is private; a few twins are no mistake."""
    for name, part in (("test", found.test), ("public", found.public)):
        if part is not None and is_mostly_in(part, found.private):
            raise InvalidValue(name, allowed="records that are public", given="mostly records that are in data too")
    if found.test is not None and found.public is not None and overlap(found.test, found.public):
        allowed = "other records than those that acceptance looks at"
        raise InvalidValue("test", allowed=allowed, given="records that are in public too")
