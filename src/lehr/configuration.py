"""A run in words: a TOML file or the options of a command, checked key by key, and trained.

    [data]                              [privacy]
    name = "mnist"                      epsilon = 3
                                        delta = 1e-5
    [model]                             expected_batch_size = 512
    network = "paper_cnn"               noise_multiplier = 1.23
    activation = "tanh"                 settings_chosen_on = "public"

    [method]                            [training]
    name = "sa-dpsgd"                   averaging = { kind = "exponential", decay = 0.999 }
    rejection_threshold = 4             evaluate_every = 100

Every table may be left out, and so may every key; ``lehr train --help`` has the same words as options.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch.nn.functional import cross_entropy

from lehr import networks, schedules, validate
from lehr.attempts import Allowance
from lehr.data import InMemory, Preparation, image_folder, load, npz
from lehr.data.augmentation import Augmentation, named
from lehr.data.decoders import Decoders
from lehr.data.file_list import listed
from lehr.data.known import KNOWN
from lehr.data.private_pca import PrivatePCA
from lehr.data.record_set import RecordSet
from lehr.data.streamed_folder import WORKERS, among
from lehr.errors import InvalidValue, StoreError
from lehr.events import NOTHING
from lehr.files import strict_json, whole_file
from lehr.mechanism import Method
from lehr.methods import by_name
from lehr.networks.by_name import default_for
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.reports.certificate import Statements
from lehr.run_folder import read_config
from lehr.training.ending import Run
from lehr.training.fit import fit
from lehr.training.given_records import GivenRecords, given_records
from lehr.training.looks import Look
from lehr.training.scored import Scored
from lehr.training.trying import try_model
from lehr.update import averaging

FORMS = ("npz", "folder")
DATA = ("name", *FORMS, *(f"{part}_{form}" for part in ("test", "public") for form in FORMS))
DATA_STATED = ("declared", "records", "num_classes", "mean", "std", "image_side", "channels", "streamed", "workers")
PRIVACY = (
    "accounting",
    "delta",
    "epsilon",
    "expected_batch_size",
    "noise_multiplier",
    "noise_schedule",
    "private_pca",
    "sampling",
    "simulated_batch_size",
    "steps",
)
PLANNED = ("delta", "epsilon", "expected_batch_size", "noise_multiplier", "noise_schedule", "sampling", "steps")
STATED = ("settings_chosen_on", "stated")
TRAINING = (
    "acceptance_fraction",
    "augmentation",
    "averaging",
    "cryptographic_on_gpu",
    "evaluate_every",
    "held_out_fraction",
    "held_out_noise_multiplier",
    "patience",
    "precision",
    "views",
)
SEARCH, SIMULATED = "search", "simulated_batch_size"
TABLES: Mapping[str, Sequence[str] | None] = {
    "data": (*DATA, *DATA_STATED),
    "model": None,  # the arguments of the network, which knows them itself
    "method": None,
    "privacy": (*PRIVACY, *STATED),
    "training": TRAINING,
}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What was said about a run, table by table. Nothing private is in it."""

    data: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None  # of a run that is resumed, in the place of its numbers

    def __post_init__(self) -> None:
        for table, known in TABLES.items():
            for key in getattr(self, table):
                if known is not None and key not in known:
                    raise InvalidValue(f"key of [{table}]", allowed="one of " + ", ".join(sorted(known)), given=key)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The configuration in a TOML file. What it says about a search (``lehr.search``) is about other runs."""
        tables = read_tables(path)
        tables.pop(SEARCH, None)
        for name, table in tables.items():
            _refuse_other_tables(name, table)
        return cls(**tables)

    @classmethod
    def of_run(cls, directory: Path) -> Self:
        """The configuration that a run was begun with; where its records are is not written down in it."""
        config = read_config(directory)
        if config["model"].get("network") is None:
            raise InvalidValue("run", allowed="one of a network that Lehr can build by its name", given=str(directory))
        parts = {
            table: strict_json.an_object(part, config[table].get(part))
            for table, part in (("data", "preparation"), ("model", "arguments"), ("method", "settings"))
        }
        training = dict(config["training"])
        stated = _said(**{key: config["data"].get(key) for key in ("name", "declared", "records", "num_classes")})
        return cls(
            data=stated | parts["data"],
            model={"network": config["model"]["network"]} | parts["model"],
            method={"name": config["method"]["name"]} | parts["method"],
            privacy=_said(stated=config.get("stated"), private_pca=training.pop("private_pca", None)),
            plan=Plan.from_json(config.get("plan")),
            training=_said(**training),
        )

    def with_words(self, **tables: Mapping[str, Any]) -> Self:
        """With these keys in place of those that were there; what is None was not said."""
        for name, table in tables.items():
            _refuse_other_tables(name, table)
        said = {table: _said(**words) for table, words in tables.items()}
        changed: dict[str, Any] = {table: {**getattr(self, table), **words} for table, words in said.items()}
        return replace(self, **changed)

    def train(self, *, data_dir: Path | None = None, seed: int | None = None, **how: Any) -> Run:
        """Train as configured. ``how`` is handed on to ``fit``: the directory, the device, callbacks and the like."""
        if SIMULATED in self.privacy:
            _, plan = self.method_and_plan()
            return self.with_plan(plan).train(data_dir=data_dir, seed=seed, **how)
        words = self._records(data_dir)
        name, arguments = self._network(words)
        with torch.random.fork_rng(devices=[]):  # networks are built on the CPU
            if seed is not None:
                torch.manual_seed(validate.count(minimum=0, seed=seed))
            model = networks.build(name, **arguments)
        return fit(
            model,
            method=self._method(),
            plan=self.plan,
            network=(name, arguments),
            **words,
            **self._privacy(words["records"]),
            **self._training(),
            **how,
        )

    def with_plan(self, plan: Plan) -> Self:
        """With a plan in the place of its numbers."""
        said = {key: value for key, value in self.privacy.items() if key not in (*PLANNED, SIMULATED)}
        return replace(self, privacy=said, plan=plan)

    def at_full_batch(self) -> Self:
        """What is simulated, where smaller batches are to stand in for it."""
        return replace(self, privacy={key: value for key, value in self.privacy.items() if key != SIMULATED})

    def method_and_plan(self) -> tuple[Method, Plan]:
        """What would be trained with. No record is read: all that decides it is public, and said or known."""
        method = self._method()
        if self.plan is not None:
            return method, self.plan
        if (batch := self.privacy.get(SIMULATED)) is not None:
            _, plan = self.at_full_batch().method_and_plan()
            return method, simulate(plan, expected_batch_size=batch)
        scored, said = self._scored(method)
        return method, scored.plan(**{key: said[key] for key in PLANNED if key in said})

    def allowance(self) -> Allowance:
        """All that a run as configured may do to the records, its scores and whatever comes before it included."""
        method, plan = self.method_and_plan()
        return self._scored(method)[0].allowance(plan)

    def _scored(self, method: Method) -> tuple[Scored, dict[str, Any]]:
        """What is scored on, from public words alone; and what is said about privacy."""
        is_own = any(form in self.data for form in FORMS)
        records = self.data.get("records") or (None if is_own else KNOWN[self._known_name()].records)
        if records is None:
            raise InvalidValue("records", allowed="stated, as a public number, for data of your own", given=None)
        has = {part: any(f"{part}_{form}" in self.data for form in FORMS) for part in ("test", "public")}
        has["test"] |= not is_own
        said = self._privacy(records)
        pca = said.get("private_pca")
        scored = Scored(
            given=_nobody(validate.count(records=records), **has),
            method=method,
            held_out_fraction=self.training.get("held_out_fraction", 0.0),
            noise_multiplier=self.training.get("held_out_noise_multiplier", 20.0),
            acceptance_fraction=self.training.get("acceptance_fraction", 0.5),
            evaluate_every=self.training.get("evaluate_every"),
            beforehand=NOTHING if pca is None else pca.event(),
        )
        return scored, said

    def given(self, data_dir: Path | None = None) -> dict[str, Any]:
        """The records themselves: those trained on, and those declared public, where there are any."""
        words = self._records(data_dir)
        return {part: words[part] for part in ("data", "test", "public")}

    def refuse_unfit(self, models: Sequence[Mapping[str, Any]], *, data_dir: Path | None = None) -> None:
        """An error where the records cannot be trained on, or a network of these tables does not take them."""
        words = self._records(data_dir)
        of_fit: dict[str, Any] = {
            key: words.get(key) for key in ("data", "records", "test", "public", "num_classes", "preparation")
        }
        given = given_records(**of_fit, name=words["data_name"])
        look = Look(preparation=given.preparation, augmentation=named("none"), views=1, device=torch.device("cpu"))
        for model in models:
            name, arguments = replace(self, model=model)._network(words)
            with torch.random.fork_rng(devices=[]):
                network = networks.build(name, **arguments)
            loss_fn = partial(cross_entropy, reduction="none")
            try_model(network, loss_fn=loss_fn, look=look, given=given, is_scored=False)

    def _records(self, data_dir: Path | None) -> dict[str, Any]:
        """The arguments of ``fit`` that say what is trained on."""
        decoders = self._decoders()
        own, *others = (self._part(prefix, decoders) for prefix in ("", "test_", "public_"))
        _refuse_other_classes(own, *others)
        parts = {part: found and found.records for part, found in zip(("test", "public"), others, strict=True)}
        said: dict[str, Any] = {
            key: self.data[key] for key in ("declared", "records", "num_classes") if key in self.data
        }
        if own is None:
            known = load(self._known_name(), data_dir)
            return {
                "data": known.train,
                "data_name": known.name,
                "records": known.records,
                "num_classes": known.num_classes,
                "preparation": self._preparation() or known.preparation,
                "public": parts["public"],
                "test": known.test if parts["test"] is None else parts["test"],
                **said,
            }
        for key in ("records", "num_classes"):
            if key not in said:
                raise InvalidValue(key, allowed="stated, as a public number, for data of your own", given=None)
        _refuse_missing_classes(own, said["num_classes"])
        name = validate.text(name=self.data.get("name", "data of our own"))
        if name in KNOWN:
            raise InvalidValue(
                "name", allowed="another one than that of a known data set beside npz or folder", given=name
            )
        return {"data": own.records, "data_name": name, "preparation": self._preparation(), **parts, **said}

    def _known_name(self) -> str:
        """The data set that is named; of one that is not known, the files are missing."""
        name = validate.text(name=self.data.get("name", "digits"))
        if name not in KNOWN:
            allowed = f"one of {', '.join(KNOWN)}, or that of your own data, with npz or folder beside it"
            raise InvalidValue("name of the data", allowed=allowed, given=name)
        return name

    def _decoders(self) -> Decoders | None:
        """What decodes the images of folders while others are trained on, where they are not read beforehand."""
        streamed = validate.true_or_false(streamed=self.data.get("streamed", False))
        folders = [key for key in self.data if key.removeprefix("test_").removeprefix("public_") == "folder"]
        if streamed and folders:
            return Decoders(self.data.get("workers", WORKERS))
        for key in ("streamed", "workers"):
            if self.data.get(key):
                allowed = "left out where there is no folder that is streamed"
                raise InvalidValue(key, allowed=allowed, given=self.data[key])
        return None

    def _part(self, prefix: str, decoders: Decoders | None) -> _Read | None:
        """The records of a file or a folder, if one is named."""
        said = [form for form in FORMS if prefix + form in self.data]
        if len(said) > 1:
            raise InvalidValue(
                f"{prefix}npz", allowed=f"left out beside {prefix}folder", given=self.data[prefix + "npz"]
            )
        if not said:
            return None
        given = self.data[prefix + said[0]]
        path = given if isinstance(given, Path) else Path(validate.text(**{prefix + said[0]: given}))
        if said == ["npz"]:
            return _Read(npz.read(path))
        side, channels = self.data.get("image_side"), self.data.get("channels", 3)
        if decoders is not None:
            if side is None:
                allowed = "stated where folders are streamed: no image is looked at for its size"
                raise InvalidValue("image_side", allowed=allowed, given=None)
            streamed = among(listed(path), image_side=side, channels=channels, decoders=decoders)
            return _Read(streamed, streamed.classes)
        size = None if side is None else (side, side)
        found = image_folder.read(path, size=size, channels=channels)
        return _Read(found.records, found.classes)

    def _preparation(self) -> Preparation | None:
        if "mean" not in self.data and "std" not in self.data:
            return None
        return Preparation.from_json({"mean": self.data.get("mean"), "std": self.data.get("std")})

    def _network(self, words: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        said = dict(self.model)
        inputs, _ = words["data"].batch(torch.zeros(0, dtype=torch.int64))
        if "network" in said:
            return said.pop("network"), {"num_classes": words["num_classes"], **said}
        name, arguments = default_for(tuple(inputs.shape[1:]), num_classes=words["num_classes"])
        return name, {**arguments, **said}

    def _method(self) -> Method:
        """The method, and whether it is counted as proven or as published, which is said once."""
        said = {"name": "dpsgd", **self.method}
        accounting = self.privacy.get("accounting")
        if accounting is not None and said.setdefault("accounting", accounting) != accounting:
            allowed = f"what [method] says, {said['accounting']}, or left out there"
            raise InvalidValue("accounting of [privacy]", allowed=allowed, given=accounting)
        name = validate.text(**{"name of the method": said.pop("name")})
        return by_name.named(name, **said)

    def _privacy(self, records: int) -> dict[str, Any]:
        said = {**self.privacy} if self.plan is not None else {"delta": default_delta(records), **self.privacy}
        said.pop("accounting", None)  # the method has it
        if "private_pca" in said:
            said["private_pca"] = PrivatePCA.from_json(said["private_pca"])
        if "noise_schedule" in said:
            said["noise_schedule"] = schedules.from_json(said["noise_schedule"], name="noise_schedule")
        if said.get("stated") is not None:
            said["stated"] = statements(said["stated"])
        return said

    def _training(self) -> dict[str, Any]:
        said = dict(self.training)
        if "augmentation" in said and not isinstance(said["augmentation"], str):
            said["augmentation"] = Augmentation.from_json(said["augmentation"])
        if "averaging" in said:
            said["averaging"] = averaging.from_json(said["averaging"])
        return said


def read_tables(path: Path) -> dict[str, Any]:
    """What a TOML file says."""
    text = whole_file.read(path)
    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a plain ValueError: an integer of thousands of digits
        raise StoreError(f"cannot use {path}: it is not TOML: {error}") from error
    strict_json.refuse_depth(read)
    return read


def _said(**words: Any) -> dict[str, Any]:
    """What is None was not said."""
    return {key: value for key, value in words.items() if value is not None}


def _refuse_other_tables(name: str, table: object) -> None:
    if name not in TABLES or not isinstance(table, Mapping):
        raise InvalidValue("table", allowed="one of " + ", ".join(f"[{known}]" for known in TABLES), given=name)


def default_delta(records: int) -> float:
    """The largest power of ten below one over the number of records, so that losing one record is unlikely.

    >>> default_delta(60_000)
    1e-05
    """
    return float(f"1e-{math.floor(math.log10(validate.count(records=records))) + 1}")


class _Read(NamedTuple):
    """What was read from a file or a folder; a folder says how its classes are named."""

    records: RecordSet
    classes: tuple[str, ...] | None = None


def _nobody(records: int, *, test: bool, public: bool) -> GivenRecords:
    """So many records by their number alone, for what needs no more than to know which parts there are."""
    nobody = InMemory(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))
    return GivenRecords(
        name="nobody",
        private=nobody,
        records=records,
        num_classes=1,
        preparation=Preparation(),
        test=nobody if test else None,
        public=nobody if public else None,
    )


def _refuse_other_classes(*parts: _Read | None) -> None:
    """Labels are places in the list of classes: folders with other lists would be labelled wrongly."""
    named = [part.classes for part in parts if part is not None and part.classes is not None]
    for classes in named[1:]:
        if classes != named[0]:
            raise InvalidValue(
                "folder", allowed="with the same classes everywhere: " + ", ".join(named[0]), given=classes
            )


def _refuse_missing_classes(read: _Read, num_classes: object) -> None:
    """A label is the place of a folder: were one missing with its only record, every record behind it would change."""
    if read.classes is not None and len(read.classes) != num_classes:
        allowed = "the number of folders: one for each class, empty where a class has no record"
        raise InvalidValue("num_classes", allowed=allowed, given=num_classes)


def statements(shape: Any) -> Statements:
    """What ``stated`` says in a file, to be passed on by a certificate."""
    known = Statements.__dataclass_fields__
    if not isinstance(shape, Mapping) or "settings_chosen_on" not in shape or not set(shape) <= set(known):
        given = sorted(shape) if isinstance(shape, Mapping) else shape
        allowed = "a table with settings_chosen_on, and of its keys only " + ", ".join(known)
        raise InvalidValue("stated", allowed=allowed, given=given)
    said: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in shape.items()}
    return Statements(**said)
