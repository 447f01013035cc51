"""A file that asks for a search, and what is checked before the first trial.

    [search]                            [search.space]
    trials = 40                         optimizer = ["sgd", "adam"]
    score = "accuracy"                  learning_rate = { low = 0.1, high = 10, log = true }
                                        momentum = [0.0, 0.9]
    [search.data]                       batch_factor = [0.5, 1, 2]
    name = "digits"                     method.clip_norm = [0.1, 1.0]
    declared = "public"

The other tables are those of ``lehr train``, and say how the winner will be trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from lehr import validate
from lehr.config import DATA_FORMS, RunConfig, as_json, read_tables
from lehr.errors import InvalidValue, LehrError
from lehr.files import strict_json
from lehr.networks.registry import build
from lehr.planning.plan import DECLARED, PRIVATE, Plan
from lehr.search.space import SHORT, WORDS, Parameters, Space, apply_settings, extremes, usual_space, why_not_scaled
from lehr.training.prepare import build_augmentation, build_averaging, check_models, method_and_plan

KEYS = ("data", "pruner", "sampler", "score", "seed", "space", "trials")
ACCURACY, LOSS = SCORES = ("accuracy", "loss")


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched for: settings for the run of ``configuration``, found on ``data`` where that is given."""

    configuration: RunConfig
    space: Space
    data: Mapping[str, Any] | None = None
    trials: int = 20
    score: str = ACCURACY
    sampler: str = "tpe"
    pruner: str = "none"
    seed: int | None = None
    named: frozenset[str] = frozenset()  # the keys that its file has, where it is of a file
    _plans: dict[str, Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        validate.count(trials=self.trials)
        validate.one_of(SCORES, score=self.score)
        if self.seed is not None:
            validate.count(minimum=0, seed=self.seed)

    @classmethod
    def read(cls, path: Path | None, *, words: Mapping[str, Mapping[str, Any]] | None = None) -> Self:
        """The search of a TOML file, with ``words`` in place of what it says in the same tables.

        Without ``[search.space]`` the usual settings are varied.
        """
        tables = {} if path is None else read_tables(path)
        search = tables.pop("search", {})
        if not isinstance(search, Mapping) or not search.keys() <= set(KEYS):
            given = sorted(search.keys() - set(KEYS)) if isinstance(search, Mapping) else search
            raise InvalidValue("key of [search]", allowed="one of " + ", ".join(KEYS), given=given)
        configuration = RunConfig.of(**tables).with_values(**(words or {}))
        if "data" in search:
            configuration.with_values(data=search["data"])  # refused here where a key is unknown
        space = Space.read(search["space"]) if "space" in search else Space({})
        made = cls(configuration=configuration, **{**search, "space": space, "named": frozenset(search)})
        if space.distributions:
            return made
        return replace(made, space=usual_space(configuration, made.plan, searched_on=made.searched_on))

    @property
    def searched_on(self) -> Mapping[str, Any]:
        """The table of the records that are searched on."""
        return self.configuration.data if self.data is None else self.data

    @property
    def declared(self) -> str:
        """What the records that are searched on are declared to be."""
        return validate.one_of(DECLARED, declared=self.searched_on.get("declared", PRIVATE))

    @cached_property
    def plan(self) -> Plan:
        """What the run of the configuration as it stands would be, at its full batch."""
        _, plan = method_and_plan(self.configuration.at_full_batch())
        return plan

    def reference(self, parameters: Parameters) -> RunConfig:
        """The run that these settings are for: at its full batch, on the records of ``[data]``."""
        return apply_settings(self.configuration.at_full_batch(), self.space.settings(parameters), plan=self.plan)

    def trial(self, parameters: Parameters, *, plan: Plan | None = None) -> RunConfig:
        """The run that tries them: on the records that are searched on, with smaller batches where it is simulated.

        Batch, steps and noise are those of the reference run, whatever number of records is searched on, so that its
        steps have as much noise. A ``plan`` that is given takes their place.
        """
        reference = self.reference(parameters)
        plan = plan or self._plan_of(reference, parameters)
        privacy = {**reference.privacy}
        for key in ("settings_chosen_on", "stated"):
            privacy.pop(key, None)
        if plan.limit is None and plan.stops_at_accepted is None and plan.noise_multiplier:
            privacy.pop("epsilon", None)
            numbers = ("delta", "expected_batch_size", "noise_multiplier", "steps")
            privacy |= {key: getattr(plan, key) for key in numbers}
        if "simulated_batch_size" in self.configuration.privacy:
            privacy["simulated_batch_size"] = self.configuration.privacy["simulated_batch_size"]
        return reference.with_tables(privacy=privacy, data=self.searched_on)

    def to_json(self) -> dict[str, object]:
        """Everything that decides what a trial is, to be compared when a study is resumed."""
        configuration = self.configuration.tables()
        configuration.pop("run")
        space = {name: repr(distribution) for name, distribution in self.space.distributions.items()}
        data = None if self.data is None else dict(self.data)
        return {"configuration": configuration, "data": data, "space": space, "score": self.score}

    def _plan_of(self, reference: RunConfig, parameters: Parameters) -> Plan:
        """The plan of a run, which takes seconds to find and does not depend on how the weights are moved."""
        if all((n in WORDS and n != "batch_factor") or n.startswith("model.") for n in parameters):
            return self.plan
        method = {key: value for key, value in reference.method.items() if key not in (*SHORT, "update")}
        decided_by = strict_json.dumps(as_json([method, reference.privacy, reference.training]))
        if decided_by not in self._plans:
            self._plans[decided_by] = method_and_plan(reference)[1]
        return self._plans[decided_by]


def check_space(search: Search, *, plan: Plan | None = None) -> None:
    """Raise an error that names the setting where one of its values is impossible. No record is read."""
    data, training = search.searched_on, search.configuration.training
    is_known = not any(form in data for form in DATA_FORMS)
    if not (is_known or any(f"test_{form}" in data for form in DATA_FORMS) or training.get("held_out_fraction")):
        allowed = "given for a search: test_npz or test_folder, or a held_out_fraction of the records themselves"
        raise InvalidValue("test records", allowed=allowed, given=None)
    _build(search.trial({}, plan=plan))  # an error here is not caused by a setting
    if "batch_factor" in search.space.distributions:
        method, _ = method_and_plan(search.configuration.with_plan(search.plan))
        if (reason := why_not_scaled(search.plan, method)) is not None:
            allowed = f"left out of a configuration without {reason}"
            raise InvalidValue("batch_factor of [search.space]", allowed=allowed, given=search.configuration.method)
    for name in search.space.distributions:
        for parameters in _extremes(search.space, name):
            try:
                _build(search.trial(parameters, plan=plan))
            except LehrError as error:
                reason = f"{error.name} must be {error.allowed}" if isinstance(error, InvalidValue) else str(error)
                allowed = f"a value with which a run can be built ({reason})"
                raise InvalidValue(f"{name} of [search.space]", allowed=allowed, given=parameters[name]) from error


def check_records(search: Search, *, data_dir: Path | None = None) -> None:
    """Raise an error where the records cannot be used, or do not fit one of the networks.

    The records are read, and networks are run on zeros of their shape. Nothing is spent.
    """
    models = [search.trial({}).model]
    for name in search.space.distributions:
        if name == "network" or name.startswith("model."):
            models += [search.trial(parameters).model for parameters in _extremes(search.space, name)]
    check_models(search.trial({}).with_options(data_dir=data_dir), models)


def _extremes(space: Space, name: str) -> Iterator[Parameters]:
    """Each extreme value of a setting, with values of the other settings under which it applies."""
    values = {other: extremes(distribution) for other, distribution in space.distributions.items()}
    deciding = {other: values[other] for other in ("optimizer", "momentum", "augmentation") if other in values}
    for value in values[name]:
        for chosen in itertools.product(*deciding.values()):
            picked = dict(zip(deciding, chosen, strict=True)) | {name: value}
            parameters = space.choose(lambda other, picked=picked: picked.get(other, values[other][0]))  # type: ignore[misc]
            if name in parameters:
                break
        else:
            allowed = "left out where it never applies: momentum and dampening belong to sgd, views to an augmentation"
            raise InvalidValue(f"{name} of [search.space]", allowed=allowed, given=value)
        yield parameters


def _build(configuration: RunConfig) -> None:
    """Build everything that needs no records: the plan, the method, the network, augmentation and averaging."""
    method_and_plan(configuration)
    arguments = dict(configuration.model)
    if "network" in arguments:
        build(arguments.pop("network"), **arguments)
    build_augmentation(configuration.training)
    build_averaging(configuration.training)
