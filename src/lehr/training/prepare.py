"""From a ``RunConfig`` to the parts of a run: network, method, plan, statements. Nothing is trained or written.

- ``build_network``, ``build_method``, ``build_plan``, …: the objects that the tables of a configuration describe
- ``method_and_plan``, ``run_plan``: the same from public values alone, without reading a record
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from lehr import networks, schedules
from lehr.accounting.events import NOTHING
from lehr.certificates.certificate import Statements
from lehr.config import (
    CLASSIFICATION,
    DATA_FORMS,
    MOMENTUM,
    PLAN_FIELDS,
    REGRESSION,
    RunConfig,
    TrainingConfig,
)
from lehr.data import InMemory, Preparation
from lehr.data.augmentation import Augmentation, augmentation_by_name
from lehr.data.catalogue import CATALOGUE
from lehr.data.private_pca import PrivatePCA
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn
from lehr.methods import by_name
from lehr.networks.registry import default_for
from lehr.optim import averaging
from lehr.planning.plan import USER, Plan, delta_for
from lehr.planning.simulation import simulate
from lehr.privacy.sampling import BALLS_IN_BINS, TRUNCATED_POISSON, adjacency_of, usual_largest_batch
from lehr.recipes import RECIPES, with_recipe
from lehr.run.evaluation import Metrics
from lehr.run.folder import read_config
from lehr.run.mechanism import Method
from lehr.run.phases import phases_from_json, with_phase_rates
from lehr.run.replay import RunPlan
from lehr.schedules import CONSTANT
from lehr.training import public_plan
from lehr.training.engines import try_model
from lehr.training.evaluation_plan import EvaluationPlan
from lehr.training.prior import Prior
from lehr.training.records import (
    STATED_BY_YOU,
    InputPipeline,
    RunRecords,
    known_name,
    load_records,
    max_records_per_user,
)


def config_of_run(directory: Path, *, has_own_network: bool = False) -> RunConfig:
    """The configuration in a run's config.json, which does not record where the records are.

    The code of a network of the user's own is not recorded either: ``has_own_network`` says that the caller has it.
    """
    shape = read_config(directory)
    if shape["model"].get("network") is None and not has_own_network:
        allowed = (
            "a run whose network Lehr can build by its name; for your own network, use Python, "
            "or lehr train --resume RUN --network package.module:factory"
        )
        raise InvalidValue("run", allowed=allowed, given=str(directory))
    return RunConfig.from_json(shape)


def check_device(device: Any) -> torch.device:
    """The given device, or the GPU if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, AssertionError, TypeError) as error:  # no such device, or torch was built without it
        raise InvalidValue("device", allowed="one that torch can use here, such as cpu", given=str(device)) from error
    return checked


# Network and training.


def network_arguments(config: RunConfig, records: RunRecords) -> tuple[str, dict[str, Any]]:
    """The name and arguments of the network, by default one that suits the shape of the records."""
    given, (inputs, _) = dict(config.model), records.like
    if "network" in given:
        known = {"num_classes": records.num_classes}
        if given["network"] == "mlp" and isinstance(inputs, Tensor):
            known["inputs"] = math.prod(inputs.shape[1:])
        return given.pop("network"), {**known, **given}
    if not isinstance(inputs, Tensor):
        raise InvalidValue("model", allowed="given: records have several inputs", given=None)
    name, arguments = default_for(tuple(inputs.shape[1:]), num_classes=records.num_classes)
    return name, {**arguments, **given}


def build_network(config: RunConfig, records: RunRecords) -> tuple[nn.Module, tuple[str, dict[str, Any]]]:
    """The initialised network, with its name and arguments. Torch's global generator is not advanced."""
    name, arguments = network_arguments(config, records)
    with torch.random.fork_rng(devices=[]):  # networks are built on the CPU
        if config.run.seed is not None:
            torch.manual_seed(config.run.seed)
        return networks.build(name, **arguments), (name, arguments)


def check_models(config: RunConfig, models: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if the records cannot be trained on, or if a [model] table's network does not take them."""
    records = load_records(config)
    augmentation = build_augmentation(TrainingConfig())
    pipeline = InputPipeline(
        preparation=records.preparation, augmentation=augmentation, views=1, device=torch.device("cpu")
    )
    for model in models:
        network, _ = build_network(config.with_tables(model=model), records)
        try_model(
            network, loss_fn=default_loss(None, records.task), pipeline=pipeline, records=records, is_scored=False
        )


def default_loss(loss_fn: LossFn | None, task: str = CLASSIFICATION) -> LossFn:
    """The loss per record of a task, unless another one is given: cross-entropy, squared error, or that of labels."""
    if loss_fn is not None:
        return loss_fn
    if task == CLASSIFICATION:
        return partial(cross_entropy, reduction="none")
    return mean_squared_error if task == REGRESSION else mean_label_cross_entropy


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each record, averaged over the numbers of its target."""
    outputs = _like_targets(outputs, targets)
    return (outputs - targets).square().unsqueeze(-1).flatten(1).mean(1)


def mean_label_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The binary cross-entropy of each record, averaged over its labels. Outputs are logits."""
    return binary_cross_entropy_with_logits(_like_targets(outputs, targets), targets, reduction="none").mean(1)


def _like_targets(outputs: Tensor, targets: Tensor) -> Tensor:
    """The outputs in the shape of the targets. A broadcast would compare every record with every other."""
    if outputs.shape == (*targets.shape, 1):
        return outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        allowed = f"one with outputs of shape {tuple(targets.shape[1:]) or (1,)} per record, as the targets have"
        raise InvalidValue("model", allowed=allowed, given=tuple(outputs.shape[1:]))
    return outputs


def build_augmentation(training: TrainingConfig) -> Augmentation:
    """The augmentation of training inputs."""
    given = training.augmentation
    if isinstance(given, str):
        return augmentation_by_name(given)
    return given if isinstance(given, Augmentation) else Augmentation.from_json(given)


def is_augmented(training: TrainingConfig) -> bool:
    """Whether training inputs differ from those of evaluation."""
    views = [training.views, *(phase.views or 1 for phase in phases_from_json(training.phases))]
    return max(views) > 1 or bool(build_augmentation(training).operations)


def build_averaging(training: TrainingConfig) -> averaging.Averaging:
    """The average of the weights."""
    given = training.averaging
    if given is None:
        return averaging.NoAverage()
    return given if hasattr(given, "learn") else averaging.from_json(given)


# Method and privacy.


def build_method(config: RunConfig) -> Method:
    """The method, with proven or published accounting. A schedule by name is left out: ``with_schedule`` adds it."""
    section, accounting = config.method, config.privacy.accounting
    settings = {key: value for key, value in section.items() if key not in ("name", "optimizer", "weight_decay")}
    if isinstance(section.schedule, str):
        schedules.by_name(settings.pop("schedule"), steps=1)  # which checks the name
    if accounting is not None and settings.setdefault("accounting", accounting) != accounting:
        allowed = f"the same as in [method], {settings['accounting']}, or omitted there"
        raise InvalidValue("accounting of [privacy]", allowed=allowed, given=accounting)
    if section.optimizer is not None or section.weight_decay is not None:
        settings["update"] = _update(config, settings)
    return with_phase_rates(by_name.named(section.name, **settings), phases_from_json(config.training.phases))


def _update(config: RunConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """The optimizer of [method] as JSON. What it consists of is removed from the settings."""
    section = config.method
    if "update" in settings:
        raise InvalidValue("optimizer", allowed="omitted together with update", given=section.optimizer)
    if section.learning_rate is None:
        raise InvalidValue("learning_rate", allowed="given together with optimizer or weight_decay", given=None)
    momentum = settings.pop("momentum", MOMENTUM if section.optimizer is None else None)
    arguments = {"momentum": momentum, "weight_decay": section.weight_decay}
    schedule = settings.pop("schedule", CONSTANT)
    return {
        "optimizer": "sgd" if section.optimizer is None else section.optimizer.lower(),
        "learning_rate": settings.pop("learning_rate"),
        "arguments": {name: value for name, value in arguments.items() if value is not None},
        "schedule": schedules.to_json(schedule) if hasattr(schedule, "factor") else schedule,
    }


def with_schedule(config: RunConfig, plan: Plan) -> RunConfig:
    """The configuration with the schedule that it names, over the likely number of steps of the plan."""
    name = config.method.schedule
    if not isinstance(name, str):
        return config
    made = schedules.by_name(name, steps=public_plan.expected_steps(plan))
    return config.with_values(method={"schedule": schedules.to_json(made)})


def build_private_pca(config: RunConfig) -> PrivatePCA | None:
    """The private PCA that fills a projection, if there is one."""
    given = config.privacy.private_pca
    return given if given is None or isinstance(given, PrivatePCA) else PrivatePCA.from_json(given)


def build_statements(
    config: RunConfig, evaluation: EvaluationPlan, plan: Plan, prior: Prior | None = None
) -> Statements | None:
    """The user's statements for the certificate. Only the user can know how the settings were chosen."""
    stated, chosen_on = config.privacy.stated, config.privacy.settings_chosen_on
    if stated is not None and chosen_on is not None:
        raise InvalidValue("settings_chosen_on", allowed="omitted together with stated", given=chosen_on)
    if stated is not None:
        return check_statements(stated).of_records(evaluation.records.records).of_unit(plan.unit_text)
    if chosen_on is None:
        return None
    recipe = config.training.recipe
    used = [] if recipe is None else [f"the recipe {recipe}: {RECIPES[recipe].public}"]
    used += [] if prior is None else [f"the weights at the start, trained on {prior}"]
    public = (f"the number of {plan.drawn}s", *evaluation.declared_public, *used)
    made = Statements(settings_chosen_on=chosen_on, records=evaluation.records.records, treated_as_public=public)
    return made.of_unit(plan.unit_text)


def check_statements(stated: Any) -> Statements:
    """Statements, or a table of them."""
    if isinstance(stated, Statements):
        return stated
    known = Statements.__dataclass_fields__
    if not isinstance(stated, Mapping) or "settings_chosen_on" not in stated or not set(stated) <= set(known):
        given = sorted(stated) if isinstance(stated, Mapping) else stated
        allowed = "a table with settings_chosen_on, and only keys among " + ", ".join(known)
        raise InvalidValue("stated", allowed=allowed, given=given)
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in stated.items()}
    return Statements(**fields)


# The plan.


def build_evaluation(
    config: RunConfig, records: RunRecords, method: Method, metrics: Metrics | None = None
) -> EvaluationPlan:
    """How the run is evaluated, and what is done before its first step."""
    pca = build_private_pca(config)
    setup_event = NOTHING if pca is None else pca.event()
    return EvaluationPlan(
        records=records,
        method=method,
        training=config.training,
        setup_event=setup_event,
        metrics={} if metrics is None else metrics,
    )


def build_plan(config: RunConfig, evaluation: EvaluationPlan) -> Plan:
    """The plan that [privacy] describes, or the finished plan that it contains."""
    privacy, records = config.privacy, evaluation.records_trained_on
    if privacy.plan is not None:
        if numbers := [key for key in PLAN_FIELDS if key in privacy]:
            raise InvalidValue("plan", allowed="given without " + ", ".join(PLAN_FIELDS), given=numbers)
        plan = _given_plan(config)
        if plan.records != records:
            raise InvalidValue("plan", allowed=f"one of {records} {plan.drawn}s", given=plan.records)
        return plan
    if privacy.records_per_user is not None and evaluation.records.owners is None:
        raise InvalidValue("records_per_user", allowed="omitted without owners", given=privacy.records_per_user)
    if privacy.simulated_batch_size is not None:
        plan = build_plan(config.at_full_batch(), evaluation)
        return simulate(plan, expected_batch_size=privacy.simulated_batch_size)
    steps, schedule = privacy.steps, privacy.noise_schedule
    largest_batch, bins = _largest_batch(config, evaluation), _bins(config, evaluation)
    if privacy.epochs is not None:
        if steps is not None:
            raise InvalidValue("epochs", allowed="omitted together with steps", given=privacy.epochs)
        batch = privacy.expected_batch_size or public_plan.usual_batch_size(records, evaluation.method)
        steps = max(1, round(privacy.epochs * (records / batch if bins is None else bins)))
    if schedule is not None and not hasattr(schedule, "factor"):
        schedule = schedules.from_json(schedule, name="noise_schedule")
    plan = public_plan.plan_for(
        records=records,
        delta=delta_for(privacy.delta, records=evaluation.records.records),
        epsilon=privacy.epsilon,
        noise_multiplier=privacy.noise_multiplier,
        expected_batch_size=privacy.expected_batch_size if bins is None else records / bins,
        steps=steps,
        adjacency=adjacency_of(privacy.sampling, privacy.adjacency),
        beside=evaluation.side_events(steps),
        noise_schedule=CONSTANT if schedule is None else schedule,
        method=evaluation.method,
        largest_batch=largest_batch,
        bins=bins,
        bands=privacy.bands,
        correlation=privacy.correlation,
        max_records_per_user=privacy.max_records_per_user,
    )
    per_user = privacy.records_per_user or (1 if evaluation.records.drawn == USER else None)
    return plan if per_user is None else replace(plan, records_per_user=per_user)


def _largest_batch(config: RunConfig, evaluation: EvaluationPlan) -> int | None:
    """The size to which batches are cut, if they are."""
    privacy, records = config.privacy, evaluation.records_trained_on
    if privacy.sampling != TRUNCATED_POISSON:
        if privacy.largest_batch is not None:
            allowed = f"omitted unless sampling is {TRUNCATED_POISSON}"
            raise InvalidValue("largest_batch", allowed=allowed, given=privacy.largest_batch)
        return None
    if privacy.largest_batch is not None:
        return privacy.largest_batch
    if privacy.expected_batch_size is None and None not in (privacy.epsilon, privacy.steps, privacy.noise_multiplier):
        raise InvalidValue("largest_batch", allowed="given where the batch size is computed", given=None)
    batch = privacy.expected_batch_size or public_plan.usual_batch_size(records, evaluation.method)
    return usual_largest_batch(batch, records)


def _bins(config: RunConfig, evaluation: EvaluationPlan) -> int | None:
    """The steps of an epoch in which every record is drawn once, where they are sampled so; the batch is rounded."""
    privacy, records = config.privacy, evaluation.records_trained_on
    if privacy.sampling != BALLS_IN_BINS:
        return None
    batch = privacy.expected_batch_size
    if batch is None:
        if None not in (privacy.epsilon, privacy.steps, privacy.noise_multiplier):
            allowed = f"given where sampling is {BALLS_IN_BINS}: it decides the steps of an epoch"
            raise InvalidValue("expected_batch_size", allowed=allowed, given=None)
        batch = public_plan.usual_batch_size(records, evaluation.method)
    return max(1, round(records / batch))


def method_and_plan(config: RunConfig) -> tuple[Method, Plan]:
    """The method and the plan of a run. No record is read: both follow from public values."""
    config = _with_public_recipe(config)
    if config.privacy.plan is not None:
        plan = _given_plan(config)
    else:
        plan = build_plan(config, _public_evaluation(config, build_method(config)))
    return build_method(with_schedule(config, plan)), plan


def run_plan(config: RunConfig) -> RunPlan:
    """All events of a run, including its evaluations and its setup. No record is read."""
    config = _with_public_recipe(config)
    method, plan = method_and_plan(config)
    return _public_evaluation(config, method).run_plan(plan)


def _with_public_recipe(config: RunConfig) -> RunConfig:
    if config.training.recipe is None or config.privacy.plan is not None:
        return config
    if any(form in config.data for form in DATA_FORMS):
        allowed = "omitted where the records are not read: it depends on their shape"
        raise InvalidValue("recipe", allowed=allowed, given=config.training.recipe)
    known = CATALOGUE[known_name(config.data)]
    records = config.data.records or known.records
    return with_recipe(
        config,
        shape=known.shape,
        records=records,
        is_on_gpu=check_device(config.run.device).type == "cuda",
        has_prior=config.data.prior is not None,
    )[0]


def _given_plan(config: RunConfig) -> Plan:
    given = config.privacy.plan
    return given if isinstance(given, Plan) else Plan.from_json(given)


def _public_evaluation(config: RunConfig, method: Method) -> EvaluationPlan:
    section = config.data
    is_own = any(form in section for form in DATA_FORMS)
    most = max_records_per_user(config)
    has_owners = most is not None or section.owners is not None or section.users is not None
    has_users = has_owners and most is None
    records = section.records or (None if is_own else CATALOGUE[known_name(section)].records)
    if has_users:
        records = section.users
    if records is None:
        raise InvalidValue("users" if has_users else "records", allowed=STATED_BY_YOU, given=None)
    has = {part: any(f"{part}_{form}" in section for form in DATA_FORMS) for part in ("test", "public")}
    placeholder = InMemory(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))
    public_facts = RunRecords(
        name="placeholder",
        private=placeholder,
        records=records,
        num_classes=1,
        preparation=Preparation(),
        test=placeholder if has["test"] or not is_own else None,
        public=placeholder if has["public"] else None,
        owners=torch.zeros(1, dtype=torch.int64) if has_owners else None,
        max_records_per_user=most,
    )
    return build_evaluation(config, public_facts, method)
