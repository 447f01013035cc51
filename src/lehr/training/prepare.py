"""From a ``RunConfig`` to the parts of a run: records, network, method, plan, options. Nothing is trained or written.

- ``read_data``, ``load_records``: the files of [data], and the records of a run, checked
- ``build_network``, ``build_method``, ``build_plan``: the objects that [model], [method] and [privacy] describe
- ``method_and_plan``, ``run_plan``: the same from public values alone, without reading a record
- ``TrainOptions``: [training] and [run] as the training loop needs them
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lehr import networks, schedules, validate
from lehr.accounting.events import NOTHING
from lehr.certificates.certificate import Statements
from lehr.config import DATA_FORMS, PLAN_FIELDS, DataConfig, RunConfig
from lehr.data import DataSet, InMemory, Preparation, image_folder, load, readers
from lehr.data.augmentation import Augmentation, augmentation_by_name
from lehr.data.catalogue import CATALOGUE
from lehr.data.decoding import DecoderPool
from lehr.data.image_folder import DEFAULT_WORKERS, stream_image_folder
from lehr.data.private_pca import PrivatePCA
from lehr.data.records import RecordSet
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn
from lehr.interfaces import Clipping
from lehr.methods import by_name
from lehr.networks.registry import default_for
from lehr.optim import averaging
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.privacy.sampling import adjacency_of
from lehr.run.folder import read_config
from lehr.run.mechanism import Method
from lehr.run.replay import RunPlan
from lehr.schedules import CONSTANT
from lehr.training import engines, public_plan
from lehr.training.engines import try_model
from lehr.training.evaluation_plan import EvaluationPlan
from lehr.training.input_pipeline import InputPipeline
from lehr.training.records import RunRecords, check_records

_STATED_BY_YOU = "stated, as a public number, for data of your own"


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainOptions:
    """How to train, apart from the method and the plan: the configuration, with objects for its words."""

    config: RunConfig
    loss_fn: LossFn
    device: torch.device

    def __post_init__(self) -> None:
        _ = self.augmentation, self.averaging

    @cached_property
    def augmentation(self) -> Augmentation:
        """The augmentation of training inputs."""
        given = self.config.training.augmentation
        if isinstance(given, str):
            return augmentation_by_name(given)
        return given if isinstance(given, Augmentation) else Augmentation.from_json(given)

    @cached_property
    def averaging(self) -> averaging.Averaging:
        """The average of the weights."""
        given = self.config.training.averaging
        if given is None:
            return averaging.NoAverage()
        return given if hasattr(given, "learn") else averaging.from_json(given)

    def inputs(self, preparation: Preparation) -> InputPipeline:
        """How inputs reach the model."""
        views = self.config.training.views
        return InputPipeline(preparation=preparation, augmentation=self.augmentation, views=views, device=self.device)

    def physical_batch_for(self, plan: Plan, *, ranks: int = 1) -> int:
        """The number of records computed at once."""
        return self.config.run.physical_batch or engines.physical_batch_for(plan, self.device, ranks=ranks)

    def is_compiled_for(self, plan: Plan, clipping: Clipping) -> bool:
        """Whether the step is compiled."""
        compiled = self.config.run.compiled
        if compiled and clipping.needs_coordinates:
            allowed = "left out for a clip that needs coordinates: those gradients are formed in full"
            raise InvalidValue("compiled", allowed=allowed, given=compiled)
        return engines.is_worth_compiling(plan, clipping) if compiled is None else compiled

    def to_json(self) -> dict[str, object]:
        """[training] as config.json records it."""
        recorded = self.config.to_json(is_recorded=True)["training"]
        return {**recorded, "augmentation": self.augmentation.to_json(), "averaging": self.averaging.to_json()}


def default_loss(loss_fn: LossFn | None) -> LossFn:
    """Cross-entropy of each record, unless another loss is given."""
    return loss_fn or partial(cross_entropy, reduction="none")


# --- Records --------------------------------------------------------------------------------------------------------


class DataParts(NamedTuple):
    """What [data] names: the records to train on, and those declared public."""

    data: DataSet | RecordSet
    test: RecordSet | None
    public: RecordSet | None


class _Read(NamedTuple):
    """The records of a file or a folder; a folder names its classes."""

    records: RecordSet
    classes: tuple[str, ...] | None = None


def config_of_run(directory: Path) -> RunConfig:
    """The configuration of a run, from its config.json; where its records are is not recorded."""
    shape = read_config(directory)
    if shape["model"].get("network") is None:
        raise InvalidValue("run", allowed="one of a network that Lehr can build by its name", given=str(directory))
    return RunConfig.from_json(shape)


def read_data(config: RunConfig) -> DataParts:
    """The records of a built-in data set, or of your own files."""
    section, decoders = config.data, _decoders(config.data)
    own, test, public = (_part(section, prefix, decoders) for prefix in ("", "test_", "public_"))
    _refuse_other_classes(own, test, public)
    rest = (test and test.records, public and public.records)
    if own is None:
        return DataParts(load(_known_name(section), section.data_dir), *rest)
    for key in ("records", "num_classes"):
        if getattr(section, key) is None:
            raise InvalidValue(key, allowed=_STATED_BY_YOU, given=None)
    if own.classes is not None and len(own.classes) != section.num_classes:
        # A label is the index of a folder: were one missing with its only record, all after it would change.
        allowed = "the number of folders: one for each class, empty where a class has no record"
        raise InvalidValue("num_classes", allowed=allowed, given=section.num_classes)
    if section.name in CATALOGUE:
        allowed = "another name than that of a built-in data set beside npz or folder"
        raise InvalidValue("dataset", allowed=allowed, given=section.name)
    return DataParts(own.records, *rest)


def load_records(
    config: RunConfig,
    data: object = None,
    *,
    test: object = None,
    public: object = None,
    preparation: Preparation | None = None,
    dtype: torch.dtype = torch.float32,
) -> RunRecords:
    """The records of a run, checked: objects where they are given, otherwise what [data] names."""
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


def _known_name(section: DataConfig) -> str:
    name = section.name or "digits"
    if name not in CATALOGUE:
        allowed = f"one of {', '.join(CATALOGUE)}, or a name for your own data, with npz or folder beside it"
        raise InvalidValue("dataset", allowed=allowed, given=name)
    return name


def _decoders(section: DataConfig) -> DecoderPool | None:
    """The processes that decode streamed images."""
    if section.streamed and any(key.endswith("folder") for key in section):
        return DecoderPool(DEFAULT_WORKERS if section.workers is None else section.workers)
    for key in ("streamed", "workers"):
        if getattr(section, key):
            allowed = "left out where there is no folder that is streamed"
            raise InvalidValue(key, allowed=allowed, given=getattr(section, key))
    return None


def _part(section: DataConfig, prefix: str, decoders: DecoderPool | None) -> _Read | None:
    """The records of a file or a folder, if one is named."""
    named = [form for form in DATA_FORMS if prefix + form in section]
    if len(named) > 1:
        raise InvalidValue(
            f"{prefix}npz", allowed=f"left out beside {prefix}folder", given=str(section[prefix + "npz"])
        )
    if not named:
        return None
    path, side = section[prefix + named[0]], section.image_side
    if named == ["npz"]:
        return _Read(readers.read_npz(path))
    if decoders is None:
        found = image_folder.read_image_folder(
            path, size=None if side is None else (side, side), channels=section.channels
        )
        return _Read(found.records, found.classes)
    if side is None:
        allowed = "stated where folders are streamed: no image is read to find its size"
        raise InvalidValue("image_side", allowed=allowed, given=None)
    streamed = stream_image_folder(path, image_side=side, channels=section.channels, workers=decoders)
    return _Read(streamed, streamed.classes)


def _refuse_other_classes(*parts: _Read | None) -> None:
    """Labels are indices into the list of classes: folders with other lists would be labelled wrongly."""
    named = [part.classes for part in parts if part is not None and part.classes is not None]
    for classes in named[1:]:
        if classes != named[0]:
            allowed = "with the same classes everywhere: " + ", ".join(named[0])
            raise InvalidValue("folder", allowed=allowed, given=classes)


# --- Network, method, statements ------------------------------------------------------------------------------------


def network_arguments(config: RunConfig, records: RunRecords) -> tuple[str, dict[str, Any]]:
    """The name and arguments of the network, by default one that suits the shape of the records."""
    said = dict(config.model)
    if "network" in said:
        return said.pop("network"), {"num_classes": records.num_classes, **said}
    name, arguments = default_for(tuple(records.like[0].shape[1:]), num_classes=records.num_classes)
    return name, {**arguments, **said}


def build_network(config: RunConfig, records: RunRecords) -> tuple[nn.Module, tuple[str, dict[str, Any]]]:
    """The network with its first weights, and how it was built. Torch's own generator is left as it was."""
    name, arguments = network_arguments(config, records)
    with torch.random.fork_rng(devices=[]):  # networks are built on the CPU
        if config.run.seed is not None:
            torch.manual_seed(config.run.seed)
        return networks.build(name, **arguments), (name, arguments)


def check_models(config: RunConfig, models: Sequence[Mapping[str, Any]]) -> None:
    """Refuse records that cannot be trained on, and [model] tables whose network does not take them."""
    records = load_records(config)
    options = TrainOptions(config=RunConfig(), loss_fn=default_loss(None), device=torch.device("cpu"))
    pipeline = options.inputs(records.preparation)
    for model in models:
        network, _ = build_network(config.with_tables(model=model), records)
        try_model(network, loss_fn=options.loss_fn, pipeline=pipeline, given=records, is_scored=False)


def build_method(config: RunConfig) -> Method:
    """The method, with whether it is counted as proven or as published."""
    section, accounting = config.method, config.privacy.accounting
    said = {key: value for key, value in section.items() if key not in ("name", "optimizer")}
    if accounting is not None and said.setdefault("accounting", accounting) != accounting:
        allowed = f"what [method] says, {said['accounting']}, or left out there"
        raise InvalidValue("accounting of [privacy]", allowed=allowed, given=accounting)
    if section.optimizer is not None:
        if "update" in said:
            raise InvalidValue("optimizer", allowed="left out beside update", given=section.optimizer)
        if section.learning_rate is None:
            raise InvalidValue("learning_rate", allowed="given beside optimizer", given=None)
        momentum = said.pop("momentum", None)
        said["update"] = {
            "optimizer": section.optimizer,
            "learning_rate": said.pop("learning_rate"),
            "arguments": {} if momentum is None else {"momentum": momentum},
            "schedule": said.pop("schedule", schedules.to_json(CONSTANT)),
        }
    return by_name.named(section.name, **said)


def build_private_pca(config: RunConfig) -> PrivatePCA | None:
    """The private PCA that fills a projection, if there is one."""
    given = config.privacy.private_pca
    return given if given is None or isinstance(given, PrivatePCA) else PrivatePCA.from_json(given)


def build_statements(config: RunConfig, evaluation: EvaluationPlan) -> Statements | None:
    """What the certificate passes on. Only the user can know how the settings were chosen."""
    stated, chosen_on = config.privacy.stated, config.privacy.settings_chosen_on
    if stated is not None and chosen_on is not None:
        raise InvalidValue("settings_chosen_on", allowed="left out beside stated", given=chosen_on)
    if stated is not None:
        return check_statements(stated).of_records(evaluation.records.records)
    if chosen_on is None:
        return None
    public = ("the number of records", *evaluation.declared_public)
    return Statements(settings_chosen_on=chosen_on, records=evaluation.records.records, treated_as_public=public)


def check_statements(stated: Any) -> Statements:
    """Statements, perhaps from a table."""
    if isinstance(stated, Statements):
        return stated
    known = Statements.__dataclass_fields__
    if not isinstance(stated, Mapping) or "settings_chosen_on" not in stated or not set(stated) <= set(known):
        given = sorted(stated) if isinstance(stated, Mapping) else stated
        allowed = "a table with settings_chosen_on, and of its keys only " + ", ".join(known)
        raise InvalidValue("stated", allowed=allowed, given=given)
    said: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stated.items()}
    return Statements(**said)


# --- The plan -------------------------------------------------------------------------------------------------------


def build_plan(config: RunConfig, evaluation: EvaluationPlan) -> Plan:
    """The plan, or the one that is given in place of its numbers."""
    privacy, records = config.privacy, evaluation.records_trained_on
    if privacy.plan is not None:
        if numbers := [key for key in PLAN_FIELDS if key in privacy]:
            raise InvalidValue("plan", allowed="given without " + ", ".join(PLAN_FIELDS), given=numbers)
        plan = _given_plan(config)
        if plan.records != records:
            raise InvalidValue("plan", allowed=f"one of {records} records", given=plan.records)
        return plan
    if privacy.simulated_batch_size is not None:
        plan = build_plan(config.at_full_batch(), evaluation)
        return simulate(plan, expected_batch_size=privacy.simulated_batch_size)
    schedule = privacy.noise_schedule
    if schedule is not None and not hasattr(schedule, "factor"):
        schedule = schedules.from_json(schedule, name="noise_schedule")
    steps = _steps(config, evaluation)
    return public_plan.plan_for(
        records=records,
        delta=default_delta(evaluation.records.records) if privacy.delta is None else privacy.delta,
        epsilon=privacy.epsilon,
        noise_multiplier=privacy.noise_multiplier,
        expected_batch_size=privacy.expected_batch_size,
        steps=steps,
        adjacency=adjacency_of(privacy.sampling),
        beside=evaluation.side_events(steps),
        noise_schedule=CONSTANT if schedule is None else schedule,
        method=evaluation.method,
    )


def _steps(config: RunConfig, evaluation: EvaluationPlan) -> int | None:
    privacy, records = config.privacy, evaluation.records_trained_on
    if privacy.epochs is None:
        return privacy.steps
    if privacy.steps is not None:
        raise InvalidValue("epochs", allowed="left out beside steps", given=privacy.epochs)
    batch = privacy.expected_batch_size or public_plan.usual_batch_size(records, evaluation.method)
    return max(1, round(privacy.epochs * records / batch))


def method_and_plan(config: RunConfig) -> tuple[Method, Plan]:
    """What would be trained with. No record is read: all that decides it is public."""
    method = build_method(config)
    if config.privacy.plan is not None:
        return method, _given_plan(config)
    return method, build_plan(config, _public_evaluation(config, method))


def _given_plan(config: RunConfig) -> Plan:
    given = config.privacy.plan
    return given if isinstance(given, Plan) else Plan.from_json(given)


def run_plan(config: RunConfig) -> RunPlan:
    """All that a run may do to the records, with its evaluations and what comes before the first step."""
    method, plan = method_and_plan(config)
    return _public_evaluation(config, method).run_plan(plan)


def _public_evaluation(config: RunConfig, method: Method) -> EvaluationPlan:
    section = config.data
    is_own = any(form in section for form in DATA_FORMS)
    records = section.records or (None if is_own else CATALOGUE[_known_name(section)].records)
    if records is None:
        raise InvalidValue("records", allowed=_STATED_BY_YOU, given=None)
    has = {part: any(f"{part}_{form}" in section for form in DATA_FORMS) for part in ("test", "public")}
    nobody = InMemory(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))
    given = RunRecords(
        name="nobody",
        private=nobody,
        records=records,
        num_classes=1,
        preparation=Preparation(),
        test=nobody if has["test"] or not is_own else None,
        public=nobody if has["public"] else None,
    )
    return build_evaluation(config, given, method)


def build_evaluation(config: RunConfig, records: RunRecords, method: Method) -> EvaluationPlan:
    """On which records the run is evaluated, and what is done before its first step."""
    pca = build_private_pca(config)
    return EvaluationPlan(
        records=records, method=method, training=config.training, setup_event=NOTHING if pca is None else pca.event()
    )


def default_delta(records: int) -> float:
    """The largest power of ten below one over the number of records.

    >>> default_delta(60_000)
    1e-05
    """
    return float(f"1e-{math.floor(math.log10(validate.count(records=records))) + 1}")


def check_device(device: Any) -> torch.device:
    """The device that is asked for, or the best that is there."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:  # no such device, or torch was built without it
        raise InvalidValue("device", allowed="one that torch can use here, such as cpu", given=str(device)) from error
    return found
