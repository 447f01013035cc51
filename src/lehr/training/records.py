"""The records of a run: read, checked, and preprocessed for the model.

- ``read_data``: the files and data sets that [data] names
- ``load_records``, ``check_records``: the records of a run, each checked once before anything is spent
- ``RunRecords``: which records are private, which are public, and which ones evaluate the run
- ``InputPipeline``: preprocessing and augmentation

Records used for acceptance are never used for evaluation.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from lehr import validate
from lehr.config import DATA_FORMS, DataConfig, RunConfig
from lehr.data import DataSet, InMemory, Preparation, image_folder, load, readers
from lehr.data.augmentation import Augmentation
from lehr.data.catalogue import CATALOGUE
from lehr.data.decoding import DecoderPool, versions
from lehr.data.image_folder import DEFAULT_WORKERS, StreamedFolder, stream_image_folder
from lehr.data.records import RecordSet, check_trainable, is_mostly_in, overlap, read_dataset
from lehr.data.split import Split
from lehr.errors import BadRecord, InvalidValue
from lehr.gradients.batches import each
from lehr.interfaces import Inputs
from lehr.networks.scattering import Scattering
from lehr.planning.plan import DECLARED, PRIVATE
from lehr.privacy.rng import RunKey

STATED_BY_YOU = "stated, as a public number, for your own data"
_PARTS = ("private", "test", "public", "held_out")
CHUNK = 256  # images whose features are computed together


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecords:
    """The records of a run. ``records`` is their stated number, which is public; the true number is private."""

    name: str
    private: RecordSet
    records: int
    num_classes: int
    preparation: Preparation
    test: RecordSet | None = None  # declared public, used for evaluation
    public: RecordSet | None = None  # declared public, used for acceptance
    held_out: RecordSet | None = None  # private, used for evaluation with noise
    declared: str = PRIVATE  # whether the training records need protection
    front_end: Scattering | None = None  # turns inputs into features, once, as the first layer of the model would

    def fingerprint(self, key: RunKey) -> str:
        """A keyed hash of all records. Without the key it reveals nothing."""
        named = (("private", self.private), ("test", self.test), ("public", self.public))
        return key.fingerprint(chunk for name, part in named if part for chunk in part.identity(name))

    @property
    def like(self) -> tuple[Tensor, Tensor]:
        """Empty inputs and targets with the shapes and types of the records."""
        inputs, targets = self.private.batch(torch.zeros(0, dtype=torch.int64))
        assert isinstance(inputs, Tensor)
        return (inputs if self.front_end is None else torch.zeros(0, *self.front_end.shape)), targets

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record, before any features are computed."""
        return tuple(replace(self, front_end=None).like[0].shape[1:])

    @property
    def model_preparation(self) -> Preparation:
        """What is left to do to the records that ``to`` returns: features are normalised already."""
        return self.preparation if self.front_end is None else Preparation()

    def computed_by(self, device: torch.device) -> dict[str, str]:
        """What may change a bit of the model's inputs: image decoders, and the arithmetic of a front end."""
        parts = (getattr(self, name) for name in _PARTS)
        found = {"decoders": versions()} if any(isinstance(part, StreamedFolder) for part in parts) else {}
        if self.front_end is not None:
            image, front_end = torch.linspace(0, 1, math.prod(self.shape)), copy.deepcopy(self.front_end).to(device)
            features = front_end(image.reshape(1, *self.shape).to(device))
            found["features"] = hashlib.sha256(features.cpu().numpy().tobytes()).hexdigest()
        return found

    def with_acceptance(self, parts: Split) -> RunRecords:
        """A copy in which a part of the test records is used for acceptance instead."""
        assert self.test is not None
        return replace(self, test=self.test.at(parts.private), public=self.test.at(parts.public))

    def with_held_out(self, parts: Split) -> RunRecords:
        """A copy in which a part of the private records is held out for noisy evaluation."""
        return replace(self, private=self.private.at(parts.private), held_out=self.private.at(parts.test))

    def to(self, device: torch.device) -> RunRecords:
        """A copy on the device, with features in place of inputs if there is a front end.

        If the device runs out of memory, only the labels move, and inputs follow by batch.
        """
        records = self if self.front_end is None else self._map(partial(self._with_features, device))
        try:
            return records._map(lambda part: part.to(device))
        except torch.OutOfMemoryError:
            return records._map(lambda part: part.to(device, targets_only=True))

    def _with_features(self, device: torch.device, part: RecordSet) -> RecordSet:
        """The features of each record, computed on the device, and kept as private as the record.

        All chunks have one size: arithmetic may round otherwise in a smaller one, and then a record more would change
        the features of others.
        """
        assert isinstance(part, InMemory)
        assert self.front_end is not None
        inputs, features = part.inputs, torch.empty(len(part), *self.front_end.shape)
        front_end = copy.deepcopy(self.front_end).to(device)  # the model's may be elsewhere
        with torch.no_grad():
            for first in range(0, len(inputs), CHUNK):
                some = inputs[first : first + CHUNK].to(device)
                chunk = torch.cat([some, some.new_zeros(CHUNK - len(some), *some.shape[1:])])
                features[first : first + CHUNK] = front_end(self.preparation.prepared(chunk))[: len(some)].cpu()
        return InMemory(features, part.targets)

    def with_front_end(self, model: nn.Module, *, is_augmented: bool) -> RunRecords:
        """A copy whose features are computed once, if the model begins with a fixed transform of unaugmented inputs."""
        first = model[0] if isinstance(model, nn.Sequential) and len(model) else None
        parts = (getattr(self, name) for name in _PARTS)
        if is_augmented or not isinstance(first, Scattering) or any(isinstance(part, StreamedFolder) for part in parts):
            return self
        return replace(self, front_end=first)

    def _map(self, change: Callable[[RecordSet], RecordSet]) -> RunRecords:
        parts = {name: getattr(self, name) for name in _PARTS}
        changed: dict[str, Any] = {name: change(part) for name, part in parts.items() if part is not None}
        return replace(self, **changed)


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """Preprocessing and augmentation. The gradients of a record's ``views`` are averaged before clipping."""

    preparation: Preparation
    augmentation: Augmentation
    views: int
    device: torch.device

    def seen(self, inputs: Inputs) -> Inputs:
        """The model's inputs in evaluation."""
        prepared: Inputs = each(lambda leaf: self.preparation.prepared(self._moved(leaf)), inputs)
        return prepared

    def trained(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        """The model's inputs in training."""
        if not self.augmentation.operations and self.views == 1:
            return self.seen(inputs)
        if not isinstance(inputs, Tensor):
            raise InvalidValue("augmentation", allowed="none unless a record is one image", given=type(inputs))
        images = self.augmentation(self.preparation.unit(self._moved(inputs)), views=self.views, generator=generator)
        return self.preparation.normalised(images if self.views > 1 else images.squeeze(1))

    def _moved(self, leaf: Tensor) -> Tensor:
        return leaf.to(self.device, non_blocking=True)


# Reading.


class DataParts(NamedTuple):
    """The records that [data] names: those to train on, and those declared public."""

    data: DataSet | RecordSet
    test: RecordSet | None
    public: RecordSet | None


class _Part(NamedTuple):
    """The records of one file or folder. Folders have class names."""

    records: RecordSet
    classes: tuple[str, ...] | None = None


def read_data(config: RunConfig) -> DataParts:
    """Read the built-in data set, or your own files."""
    section = config.data
    decoders = _decoders(section)
    own, test, public = (_read_part(section, prefix, decoders) for prefix in ("", "test_", "public_"))
    # Labels are indices into the list of classes: folders with different lists would be labelled wrongly.
    classes = [part.classes for part in (own, test, public) if part is not None and part.classes is not None]
    for other in classes[1:]:
        if other != classes[0]:
            raise InvalidValue("folder", allowed="the same classes everywhere: " + ", ".join(classes[0]), given=other)
    rest = (test and test.records, public and public.records)
    if own is None:
        return DataParts(load(known_name(section), section.data_dir), *rest)
    for key in ("records", "num_classes"):
        if getattr(section, key) is None:
            raise InvalidValue(key, allowed=STATED_BY_YOU, given=None)
    if own.classes is not None and len(own.classes) != section.num_classes:
        # If a class's folder went missing with its only record, the labels of all later classes would change.
        allowed = "the number of folders: one per class, empty if a class has no record"
        raise InvalidValue("num_classes", allowed=allowed, given=section.num_classes)
    if section.name in CATALOGUE:
        allowed = "not the name of a built-in data set, together with npz or folder"
        raise InvalidValue("dataset", allowed=allowed, given=section.name)
    return DataParts(own.records, *rest)


def known_name(section: DataConfig) -> str:
    """The name of the built-in data set; ``digits`` by default."""
    name = section.name or "digits"
    if name not in CATALOGUE:
        allowed = f"one of {', '.join(CATALOGUE)}, or a name for your own data together with npz or folder"
        raise InvalidValue("dataset", allowed=allowed, given=name)
    return name


def _decoders(section: DataConfig) -> DecoderPool | None:
    """The processes that decode streamed images."""
    if section.streamed and any(key.endswith("folder") for key in section):
        return DecoderPool(DEFAULT_WORKERS if section.workers is None else section.workers)
    for key in ("streamed", "workers"):
        if getattr(section, key):
            raise InvalidValue(key, allowed="omitted unless a folder is streamed", given=getattr(section, key))
    return None


def _read_part(section: DataConfig, prefix: str, decoders: DecoderPool | None) -> _Part | None:
    forms = [form for form in DATA_FORMS if prefix + form in section]
    if not forms:
        return None
    if len(forms) > 1:
        allowed = f"omitted together with {prefix}folder"
        raise InvalidValue(f"{prefix}npz", allowed=allowed, given=str(section[prefix + "npz"]))
    path, side = section[prefix + forms[0]], section.image_side
    if forms == ["npz"]:
        return _Part(readers.read_npz(path))
    if decoders is None:
        size = None if side is None else (side, side)
        images = image_folder.read_image_folder(path, size=size, channels=section.channels)
        return _Part(images.records, images.classes)
    if side is None:
        allowed = "stated for streamed folders: no image is read to find its size"
        raise InvalidValue("image_side", allowed=allowed, given=None)
    streamed = stream_image_folder(path, image_side=side, channels=section.channels, workers=decoders)
    return _Part(streamed, streamed.classes)


# Checking.


def load_records(
    config: RunConfig,
    data: object = None,
    *,
    test: object = None,
    public: object = None,
    preparation: Preparation | None = None,
    dtype: torch.dtype = torch.float32,
) -> RunRecords:
    """The checked records of a run: the objects that are given, otherwise what [data] names."""
    section = config.data
    parts = DataParts(data, None, None) if data is not None else read_data(config)  # type: ignore[arg-type]
    if preparation is None and (section.mean is not None or section.std is not None):
        preparation = Preparation.from_json({"mean": section.mean, "std": section.std})
    return check_records(
        parts.data,
        records=section.records,
        test=parts.test if test is None else test,
        public=parts.public if public is None else public,
        num_classes=section.num_classes,
        preparation=preparation,
        name=section.name or (None if data is not None or isinstance(parts.data, DataSet) else "your own data"),
        dtype=dtype,
        declared=section.declared,
    )


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
    """Check every record, so that a bad one is reported before the run and not during it.

    ``dtype`` is the model's; floating-point inputs of other types are converted.
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
        raise InvalidValue("num_classes", allowed="stated if the data set does not contain it", given=None)
    checked = RunRecords(
        name=name or "unnamed",
        private=_check(data, num_classes, "data", dtype),
        records=validate.count(records=records),
        num_classes=validate.count(num_classes=num_classes),
        preparation=preparation or Preparation(),
        test=None if test is None else _check(test, num_classes, "test", dtype),
        public=None if public is None else _check(public, num_classes, "public", dtype),
        declared=validate.one_of(DECLARED, declared=declared),
    )
    expected = tuple(checked.like[0].shape[1:])
    for part_name, part in (("test", checked.test), ("public", checked.public)):
        if part is None:
            continue
        shape = tuple(replace(checked, private=part).like[0].shape[1:])
        if shape != expected:
            raise InvalidValue(part_name, allowed=f"records of shape {expected}, as in data", given=shape)
        if is_mostly_in(part, checked.private):  # a few duplicates are no mistake
            raise InvalidValue(part_name, allowed="public records", given="mostly records that are also in data")
    if checked.test is not None and checked.public is not None and overlap(checked.test, checked.public):
        allowed = "other records than those used for acceptance"
        raise InvalidValue("test", allowed=allowed, given="records that are also in public")
    return checked


def _check(data: object, num_classes: int, name: str, dtype: torch.dtype) -> RecordSet:
    match data:
        case StreamedFolder():  # only a few of its records are read
            data.check(num_classes=num_classes)
            return data
        case InMemory():
            held = data
        case (Tensor() as inputs, Tensor() as targets):
            held = InMemory(inputs, targets)
        case Dataset():
            held = read_dataset(data)
        case _:
            allowed = "a data set, its name, a pair of tensors, a torch Dataset or a streamed folder"
            raise InvalidValue(name, allowed=allowed, given=type(data).__name__)
    if held.inputs.is_floating_point():  # before the check: a large number may be infinite in the model's type
        held = InMemory(held.inputs.to(dtype), held.targets)
    try:
        check_trainable(held, num_classes=num_classes)
    except BadRecord as error:
        if name == "data":
            raise
        raise BadRecord(f"{error.record} of {name}", reason=error.reason) from error
    # Losses take labels as int64 only, whatever type a file stores them in.
    return InMemory(held.inputs, held.targets.long() if held.targets.ndim == 1 else held.targets)
