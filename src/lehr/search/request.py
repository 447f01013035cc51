"""A file that asks for a search, the terms of the search, and what is checked before the first trial.

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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from lehr import validate
from lehr.config import DATA_FORMS, RunConfig, as_json, read_tables
from lehr.errors import InvalidValue, LehrError
from lehr.files import strict_json
from lehr.networks.registry import build
from lehr.planning.plan import DECLARED, PRIVATE, PUBLIC, Plan
from lehr.search.space import (
    DECIDING,
    SHORT,
    WORDS,
    Dimension,
    Parameters,
    Space,
    Value,
    apply_settings,
    usual_space,
    why_not_scaled,
)
from lehr.training.prepare import build_augmentation, build_averaging, check_models, method_and_plan

GRID = "grid"
SAMPLERS = ("tpe", "random", GRID, "qmc", "gp")
NO_PRUNER = "none"
PRUNERS = (NO_PRUNER, "median", "hyperband", "successive-halving")


KEYS = ("data", "pruner", "sampler", "score", "seed", "space", "trials")
ACCURACY, LOSS = SCORES = ("accuracy", "loss")
TRIALS = 20


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched for: settings for the run of ``configuration``, found on ``data`` where that is given."""

    configuration: RunConfig
    space: Space
    data: Mapping[str, Any] | None = None
    trials: int = TRIALS
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
        said: dict[str, Any] = {**search, "named": frozenset(search)}
        configuration = RunConfig.of(**tables).with_values(**(words or {}))
        if "data" in said:
            configuration.with_values(data=said["data"])  # refused here where a key is unknown
        if "space" in said:
            return cls(configuration=configuration, **{**said, "space": Space.read(said["space"])})
        made = cls(configuration=configuration, space=Space(()), **said)
        searched_on = configuration.data if made.data is None else made.data
        return replace(made, space=usual_space(configuration, made.plan, searched_on=searched_on))

    @property
    def declared(self) -> str:
        """What the records that are searched on are said to be."""
        found = (self.configuration.data if self.data is None else self.data).get("declared", PRIVATE)
        return validate.one_of(DECLARED, declared=found)

    @cached_property
    def plan(self) -> Plan:
        """What the run of the configuration as it stands would be, at its full batch."""
        _, plan = method_and_plan(self.configuration.at_full_batch())
        return plan

    def reference(self, parameters: Mapping[str, Value]) -> RunConfig:
        """The run that these settings are for: at its full batch, on the records of ``[data]``."""
        return apply_settings(self.configuration.at_full_batch(), self.space.meant(parameters), plan=self.plan)

    def trial(self, parameters: Mapping[str, Value], *, plan: Plan | None = None) -> RunConfig:
        """The run that tries them: on the records that are searched on, by smaller batches where these are asked for.

        Batch, steps and noise are those of the reference run, whatever number of records is searched on, so that its
        steps have as much noise. A ``plan`` that is given takes their place.
        """
        reference = self.reference(parameters)
        if plan is None:
            # These settings cannot change the plan.
            keeps_plan = all((n in WORDS and n != "batch_factor") or n.startswith("model.") for n in parameters)
            plan = self.plan if keeps_plan else self._planned(reference)
        said = {key: value for key, value in reference.privacy.items() if key not in ("settings_chosen_on", "stated")}
        if plan.limit is None and plan.stops_at_accepted is None and plan.noise_multiplier:
            said.pop("epsilon", None)
            said |= {key: getattr(plan, key) for key in ("delta", "expected_batch_size", "noise_multiplier", "steps")}
        if "simulated_batch_size" in self.configuration.privacy:
            said["simulated_batch_size"] = self.configuration.privacy["simulated_batch_size"]
        return reference.with_tables(privacy=said, data=reference.data if self.data is None else self.data)

    def to_json(self) -> dict[str, object]:
        """Everything that decides what a trial is, to be compared when a study is resumed."""
        configuration = self.configuration.tables()
        configuration.pop("run")
        space = {d.name: repr(d) for d in self.space.dimensions}
        data = None if self.data is None else dict(self.data)
        return {"configuration": configuration, "data": data, "space": space, "score": self.score}

    def _planned(self, reference: RunConfig) -> Plan:
        """Its plan, which takes seconds to find and does not depend on how the weights are moved."""
        method = {key: value for key, value in reference.method.items() if key not in (*SHORT, "update")}
        decided_by = strict_json.dumps(as_json([method, reference.privacy, reference.training]))
        if decided_by not in self._plans:
            self._plans[decided_by] = method_and_plan(reference)[1]
        return self._plans[decided_by]


@dataclass(frozen=True, kw_only=True)
class SearchTerms:
    """What a search is said to be, on what its settings are chosen, and the plan of every trial if it is fixed.

    A study shows and keeps all of its trials.
    """

    words: str
    settings_chosen_on: str = PUBLIC
    plan: Plan | None = None


def free_terms(search: Search) -> SearchTerms:
    """The terms of a free search, or an error that names the alternatives where the records are private."""
    if search.declared == PRIVATE:
        allowed = (
            "public or synthetic for a free search, in [data] or in [search.data], whose records are then used; "
            "on private records the search must be paid for (--pay selection, or --pay composition)"
        )
        raise InvalidValue("declared", allowed=allowed, given=PRIVATE)
    return SearchTerms(words=f"free: the records that are searched on are declared {search.declared}")


def check_space(search: Search, *, plan: Plan | None = None) -> None:
    """Raise an error that names the setting where one of its values is impossible. No record is read."""
    data, training = search.configuration.data if search.data is None else search.data, search.configuration.training
    is_known = not any(form in data for form in DATA_FORMS)
    if not (is_known or any(f"test_{form}" in data for form in DATA_FORMS) or training.get("held_out_fraction")):
        allowed = "given for a search: test_npz or test_folder, or a held_out_fraction of the records themselves"
        raise InvalidValue("test records", allowed=allowed, given=None)
    _build(search.trial({}, plan=plan))  # an error here is not caused by a setting
    if "batch_factor" in search.space:
        method, _ = method_and_plan(search.configuration.with_plan(search.plan))
        if (reason := why_not_scaled(search.plan, method)) is not None:
            allowed = f"left out of a configuration without {reason}"
            raise InvalidValue("batch_factor of [search.space]", allowed=allowed, given=search.configuration.method)
    for dimension in search.space.dimensions:
        for value in dimension.tried:
            try:
                _build(search.trial(_with_others(search, dimension, value), plan=plan))
            except LehrError as error:
                reason = f"{error.name} must be {error.allowed}" if isinstance(error, InvalidValue) else str(error)
                allowed = f"a value with which a run can be built ({reason})"
                raise InvalidValue(f"{dimension.name} of [search.space]", allowed=allowed, given=value) from error


def check_records(search: Search, *, data_dir: Path | None = None) -> None:
    """Raise an error where the records cannot be used, or do not fit one of the networks.

    The records are read, and networks are run on zeros of their shape. Nothing is spent.
    """
    models = [search.trial({}).model]
    for dimension in search.space.dimensions:
        if dimension.name == "network" or dimension.name.startswith("model."):
            models += [search.trial(_with_others(search, dimension, value)).model for value in dimension.tried]
    check_models(search.trial({}).with_options(data_dir=data_dir), models)


def _with_others(search: Search, dimension: Dimension, value: Value) -> Parameters:
    """The value, with choices of the other settings under which it applies."""
    deciding = [other for other in search.space.dimensions if other.name in DECIDING and other.name != dimension.name]
    for chosen in itertools.product(*(other.tried for other in deciding)):
        fixed = {dimension.name: value} | {other.name: one for other, one in zip(deciding, chosen, strict=True)}
        parameters = search.space.chosen(lambda other, fixed=fixed: fixed.get(other.name, other.tried[0]))  # type: ignore[misc]
        if dimension.name in parameters:
            return parameters
    allowed = "left out where it never applies: momentum and dampening belong to sgd, views to an augmentation"
    raise InvalidValue(dimension.name, allowed=allowed, given=value)


def _build(configuration: RunConfig) -> None:
    """Build everything that needs no records: the plan, the method, the network, augmentation and averaging."""
    method_and_plan(configuration)
    arguments = dict(configuration.model)
    if "network" in arguments:
        build(arguments.pop("network"), **arguments)
    build_augmentation(configuration.training)
    build_averaging(configuration.training)
