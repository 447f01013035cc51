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
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.config import CLASSIFICATION, DATA_FORMS, MULTILABEL, REGRESSION, DataConfig, RunConfig
from lehr.data import DataSet, InMemory, Preparation, image_folder, load, readers
from lehr.data.augmentation import Augmentation
from lehr.data.catalogue import CATALOGUE
from lehr.data.decoding import DecoderPool, versions
from lehr.data.image_folder import DEFAULT_WORKERS, StreamedFolder, stream_image_folder
from lehr.data.records import (
    TARGET_NAMES,
    RecordSet,
    check_trainable,
    is_mostly_in,
    overlap,
    read_records,
    take_column,
)
from lehr.data.split import Split
from lehr.errors import BadRecord, InvalidValue
from lehr.gradients.batches import each, leaves
from lehr.interfaces import Inputs, moved
from lehr.networks.scattering import Scattering
from lehr.planning.plan import DECLARED, PRIVATE, RECORD, USER, Plan
from lehr.privacy.rng import RunKey
from lehr.privacy.users import user_indices

STATED_BY_YOU = "stated, as a public number, for your own data"
_PARTS = ("private", "test", "public", "held_out")
CHUNK = 256  # images whose features are computed together


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecords:
    """The records of a run. ``records`` is their stated number, which is public; the true number is private."""

    name: str
    private: RecordSet
    records: int
    num_classes: int  # of a regression or a multi-label task: the number of outputs
    preparation: Preparation
    task: str = CLASSIFICATION
    test: RecordSet | None = None  # declared public, used for evaluation
    public: RecordSet | None = None  # declared public, used for acceptance
    held_out: RecordSet | None = None  # private, used for evaluation with noise
    declared: str = PRIVATE  # whether the training records need protection
    owners: Tensor | None = None  # the user of each private record, from zero; ``records`` is then that of users,
    max_records_per_user: int | None = None  # unless this is given: at most so many of each are in the run
    front_end: Scattering | None = None  # turns inputs into features, once, as the first layer of the model would

    def fingerprint(self, key: RunKey) -> str:
        """A keyed hash of all records. Without the key it reveals nothing."""
        named = (("private", self.private), ("test", self.test), ("public", self.public))
        owners = () if self.owners is None else (b"owners", self.owners.numpy().data)
        records = (chunk for name, part in named if part for chunk in part.identity(name))
        return key.fingerprint(chain(records, owners))

    @property
    def num_held(self) -> int:
        """The true number of records in the run, or of users where steps draw them; private."""
        if self.owners is None:
            return len(self.private)
        if self.max_records_per_user is not None:
            return int(torch.bincount(self.owners).clamp(max=self.max_records_per_user).sum())
        return int(self.owners.max()) + 1

    @property
    def drawn(self) -> str:
        """What ``records`` counts: "record" or "user"."""
        return RECORD if self.owners is None or self.max_records_per_user is not None else USER

    @property
    def like(self) -> tuple[Inputs, Tensor]:
        """Empty inputs and targets with the shapes and types of the records."""
        inputs, targets = self.private.batch(torch.zeros(0, dtype=torch.int64))
        return (inputs if self.front_end is None else torch.zeros(0, *self.front_end.shape)), targets

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a record, before any features are computed; empty if a record has several inputs."""
        inputs, _ = replace(self, front_end=None).like
        return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()

    @property
    def input_shapes(self) -> str:
        """The shapes of the model's inputs, in words."""
        return shapes_of(self.like[0])

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
    """Preprocessing and augmentation. The gradients of a record's ``views`` are averaged before clipping.

    With ``records_per_user``, inputs in training have a second axis of so many records, which become views too.
    """

    preparation: Preparation
    augmentation: Augmentation
    views: int
    device: torch.device
    records_per_user: int | None = None

    @property
    def total_views(self) -> int:
        """All views whose gradients are averaged before one clip."""
        return self.views * (self.records_per_user or 1)

    def seen(self, inputs: Inputs) -> Inputs:
        """The model's inputs in evaluation."""
        prepared: Inputs = each(lambda leaf: self.preparation.prepared(self._moved(leaf)), inputs)
        return prepared

    def trained(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        """The model's inputs in training."""
        if self.records_per_user is None:
            return self._augmented(inputs, generator)

        def by_user(leaf: Tensor) -> Tensor:
            flat, total = leaf.flatten(0, 1) if self.views > 1 else leaf, self.total_views
            return flat.view(len(flat) // total, total, *flat.shape[1:]) if total > 1 else flat

        alone: Inputs = each(lambda leaf: leaf.flatten(0, 1), inputs)
        grouped: Inputs = each(by_user, self._augmented(alone, generator))
        return grouped

    def _augmented(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        if not self.augmentation.operations and self.views == 1:
            return self.seen(inputs)
        if not isinstance(inputs, Tensor):
            raise InvalidValue("augmentation", allowed="none unless a record is one image", given=type(inputs))
        images = self.augmentation(self.preparation.unit(self._moved(inputs)), views=self.views, generator=generator)
        return self.preparation.normalised(images if self.views > 1 else images.squeeze(1))

    def _moved(self, leaf: Tensor) -> Tensor:
        return moved(leaf, self.device)


# Reading.


class DataParts(NamedTuple):
    """The records that [data] names: those to train on, and those declared public."""

    data: DataSet | RecordSet
    test: RecordSet | None
    public: RecordSet | None
    owners: Any = None  # an id for each record to train on


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
        _owners_in_file(section)
        return DataParts(load(known_name(section), section.data_dir), *rest)
    draws_users = section.owners is not None and max_records_per_user(config) is None
    for key in ("users" if draws_users else "records", "num_classes"):
        if getattr(section, key) is None:
            raise InvalidValue(key, allowed=STATED_BY_YOU, given=None)
    if own.classes is not None and len(own.classes) != section.num_classes:
        # If a class's folder went missing with its only record, the labels of all later classes would change.
        allowed = "the number of folders: one per class, empty if a class has no record"
        raise InvalidValue("num_classes", allowed=allowed, given=section.num_classes)
    if section.name in CATALOGUE:
        allowed = "not the name of a built-in data set, together with npz or folder"
        raise InvalidValue("dataset", allowed=allowed, given=section.name)
    return DataParts(own.records, *rest, owners=_owners_in_file(section))


def _owners_in_file(section: DataConfig) -> Any:
    if section.owners is None:
        return None
    if section.npz is None:
        allowed = "omitted unless the records are an npz file, or a table that is passed to lehr.fit"
        raise InvalidValue("owners", allowed=allowed, given=section.owners)
    return readers.read_npz_column(section.npz, section.owners)


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


def max_records_per_user(config: RunConfig) -> int | None:
    """The most records of a user in a run that draws records of users, by its privacy settings or its finished plan."""
    given = config.privacy.plan
    if given is None:
        return config.privacy.max_records_per_user
    return (given if isinstance(given, Plan) else Plan.from_json(given)).max_records_per_user


def load_records(
    config: RunConfig,
    data: object = None,
    *,
    test: object = None,
    public: object = None,
    owners: object = None,
    preparation: Preparation | None = None,
    dtype: torch.dtype = torch.float32,
) -> RunRecords:
    """The checked records of a run: the objects that are given, otherwise what [data] names."""
    section = config.data
    if owners is None and section.owners is not None and data is not None:
        data, owners = take_column(data, section.owners)
        test, public = (_without(part, section.owners) for part in (test, public))
    parts = DataParts(data, None, None, owners) if data is not None else read_data(config)  # type: ignore[arg-type]
    if preparation is None and (section.mean is not None or section.std is not None):
        preparation = Preparation.from_json({"mean": section.mean, "std": section.std})
    return check_records(
        parts.data,
        records=section.records,
        owners=parts.owners if owners is None else owners,
        users=section.users,
        max_records_per_user=max_records_per_user(config),
        test=parts.test if test is None else test,
        public=parts.public if public is None else public,
        num_classes=section.num_classes,
        task=section.task,
        target=section.target,
        preparation=preparation,
        name=section.name or (None if data is not None or isinstance(parts.data, DataSet) else "your own data"),
        dtype=dtype,
        declared=section.declared,
    )


def _without(data: object, column: str) -> object:
    """The public records without a column that is no input, if they have it."""
    try:
        return data if data is None else take_column(data, column)[0]
    except InvalidValue:
        return data


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
    task: str | None = None,
    target: str | None = None,
    owners: object = None,
    users: int | None = None,
    max_records_per_user: int | None = None,
) -> RunRecords:
    """Check every record, so that a bad one is reported before the run and not during it.

    ``dtype`` is the model's; floating-point inputs of other types are converted. Without ``task``, the dtype of the
    targets decides, which is public, and whether ``num_classes`` is given. ``target`` is the column of a table.
    ``owners`` has the id of each record's user; ``users`` is their stated number, which is public.
    With ``max_records_per_user`` it is the number of records that is stated, counting at most so many of each user.
    """
    known = load(data) if isinstance(data, str) else data
    if isinstance(known, DataSet):
        records = known.records if records is None else records
        num_classes = known.num_classes if num_classes is None else num_classes
        name, preparation = name or known.name, preparation or known.preparation
        data, test = known.train, known.test if test is None else test
    stated = _stated_number(records, users, has_owners=owners is not None, most=max_records_per_user)
    given = {"data": data, "test": test, "public": public}
    parts = {part: _read(value, part, target) for part, value in given.items() if value is not None}
    task, num_classes = _task_of(parts["data"], task, num_classes)
    check = partial(_check, task=task, num_classes=num_classes, dtype=dtype)
    checked = RunRecords(
        name=name or "unnamed",
        private=check(parts["data"], "data"),
        owners=None if owners is None else user_indices(owners, num_records=len(parts["data"])),
        max_records_per_user=max_records_per_user,
        records=stated,
        num_classes=num_classes,
        task=task,
        preparation=preparation or Preparation(),
        test=check(parts["test"], "test") if "test" in parts else None,
        public=check(parts["public"], "public") if "public" in parts else None,
        declared=validate.one_of(DECLARED, declared=declared),
    )
    expected, columns = [shapes_of(like) for like in checked.like], _columns(data, target)
    for part_name, part in (("test", checked.test), ("public", checked.public)):
        if part is None:
            continue
        shapes = [shapes_of(like) for like in replace(checked, private=part).like]
        for found, wanted, what in zip(shapes, expected, ("records", "targets"), strict=True):
            if found != wanted:
                raise InvalidValue(part_name, allowed=f"{what} of shape {wanted}, as in data", given=found)
        own_columns = _columns(given[part_name], target)
        if columns and own_columns and columns != own_columns:
            raise InvalidValue(part_name, allowed=f"the columns of data, in their order: {columns}", given=own_columns)
        if is_mostly_in(part, checked.private):  # a few duplicates are no mistake
            raise InvalidValue(part_name, allowed="public records", given="mostly records that are also in data")
    if checked.test is not None and checked.public is not None and overlap(checked.test, checked.public):
        allowed = "other records than those used for acceptance"
        raise InvalidValue("test", allowed=allowed, given="records that are also in public")
    return checked


def _stated_number(records: int | None, users: int | None, *, has_owners: bool, most: int | None) -> int:
    """The stated number of what steps draw: records, or users."""
    if most is not None:
        validate.count(max_records_per_user=most)
    if not has_owners and users is not None:
        raise InvalidValue("users", allowed="omitted without owners", given=users)
    if not has_owners and most is not None:
        raise InvalidValue("max_records_per_user", allowed="omitted without owners", given=most)
    if users is not None and most is not None:
        raise InvalidValue("users", allowed="omitted with max_records_per_user: state records", given=users)
    return _stated_users(users) if has_owners and most is None else _stated(records)


def _stated(records: int | None) -> int:
    if records is None:
        allowed = "the number of records, which you state in public (len(data) is private)"
        raise InvalidValue("records", allowed=allowed, given=None)
    return validate.count(records=records)


def _stated_users(users: int | None) -> int:
    if users is None:
        raise InvalidValue("users", allowed="the number of users, which you state in public", given=None)
    return validate.count(users=users)


def shapes_of(inputs: Inputs) -> str:
    """The shape of a record, or of each of its inputs, in words."""
    if isinstance(inputs, dict):
        return "{" + ", ".join(f"{name}: {tuple(inputs[name].shape[1:])}" for name in sorted(inputs)) + "}"
    shapes = [tuple(leaf.shape[1:]) for leaf in leaves(inputs)]
    return str(shapes[0]) if isinstance(inputs, Tensor) else ", ".join(map(str, shapes))


def _columns(data: object, target: str | None) -> list[object] | None:
    """The names of the columns of a pandas frame, in order, without the target."""
    inputs: Any = data[0] if isinstance(data, tuple) and len(data) == 2 else data
    if not (hasattr(inputs, "iloc") and hasattr(inputs, "columns")):
        return None
    return [column for column in inputs.columns if inputs is not data or column not in (target, *TARGET_NAMES)]


def _read(data: object, name: str, target: str | None) -> RecordSet:
    return data if isinstance(data, StreamedFolder) else read_records(data, name=name, target=target)


def _task_of(records: RecordSet, task: str | None, num_classes: int | None) -> tuple[str, int]:
    """The task and the number of outputs. Both follow from public facts: what is stated, and dtype and shape."""
    _, targets = records.batch(torch.zeros(0, dtype=torch.int64))
    if task is None:
        task = REGRESSION if num_classes is None and targets.is_floating_point() else CLASSIFICATION
    if task == CLASSIFICATION:
        if num_classes is None:
            allowed = "stated if the data set does not contain it; or omitted with task='regression' or 'multilabel'"
            raise InvalidValue("num_classes", allowed=allowed, given=None)
        return task, validate.count(num_classes=num_classes)
    if isinstance(records, StreamedFolder):
        raise InvalidValue("task", allowed="classification for a folder of images", given=task)
    shape = tuple(targets.shape[1:])
    if task == MULTILABEL and len(shape) != 1:
        allowed = "targets of shape (records, labels), each 0 or 1, for task='multilabel'"
        raise InvalidValue("data", allowed=allowed, given=shape)
    outputs = math.prod(shape)
    if num_classes not in (None, outputs):
        allowed = f"omitted, or {outputs}, the size of a target, for task={task!r}"
        raise InvalidValue("num_classes", allowed=allowed, given=num_classes)
    return task, outputs


def _check(held: RecordSet, name: str, *, task: str, num_classes: int, dtype: torch.dtype) -> RecordSet:
    if isinstance(held, StreamedFolder):  # only a few of its records are read
        held.check(num_classes=num_classes)
        return held
    assert isinstance(held, InMemory)

    def convert(leaf: Tensor) -> Tensor:
        return leaf.to(dtype) if leaf.is_floating_point() else leaf

    # Before the check: a large number may be infinite in the model's type.
    targets = held.targets.to(dtype) if task == REGRESSION else held.targets
    held = InMemory(each(convert, held.inputs), targets)
    try:
        check_trainable(held, num_classes={CLASSIFICATION: num_classes, MULTILABEL: 2}.get(task))
    except BadRecord as error:
        if name == "data":
            raise
        raise BadRecord(f"{error.record} of {name}", reason=error.reason) from error
    if task == MULTILABEL:
        return InMemory(held.inputs, held.targets.to(dtype))
    # Losses take labels as int64 only, whatever type a file stores them in.
    is_label = task == CLASSIFICATION and held.targets.ndim == 1
    return InMemory(held.inputs, held.targets.long() if is_label else held.targets)
