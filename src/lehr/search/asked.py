"""A file that asks for a search: a configuration, and beside it what to vary, on which records.

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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from lehr import validate
from lehr.configuration import SEARCH, TABLES, Configuration, read_tables
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.plan import Plan
from lehr.run_shape import DECLARED, PRIVATE
from lehr.search.applying import SHORT, applied
from lehr.search.defaults import usual_space
from lehr.search.dimension import Value
from lehr.search.space import WORDS, Space

KEYS = ("data", "pruner", "sampler", "score", "seed", "space", "trials")
ACCURACY, LOSS = SCORES = ("accuracy", "loss")
TRIALS = 20


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched for: settings for the run of ``configuration``, found on ``data`` where that is given."""

    configuration: Configuration
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
        search = tables.pop(SEARCH, {})
        if not isinstance(search, Mapping) or not search.keys() <= set(KEYS):
            given = sorted(search.keys() - set(KEYS)) if isinstance(search, Mapping) else search
            raise InvalidValue("key of [search]", allowed="one of " + ", ".join(KEYS), given=given)
        said: dict[str, Any] = {**search, "named": frozenset(search)}
        configuration = Configuration().with_words(**tables).with_words(**(words or {}))
        if "data" in said:
            configuration.with_words(data=said["data"])  # refused here where a key is unknown
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
        _, plan = self.configuration.at_full_batch().method_and_plan()
        return plan

    def reference(self, parameters: Mapping[str, Value]) -> Configuration:
        """The run that these settings are for: at its full batch, on the records of ``[data]``."""
        return applied(self.configuration.at_full_batch(), self.space.meant(parameters), plan=self.plan)

    def trial(self, parameters: Mapping[str, Value], *, plan: Plan | None = None) -> Configuration:
        """The run that tries them: on the records that are searched on, by smaller batches where these are asked for.

        Batch, steps and noise are those of the reference run, whatever number of records is searched on, so that its
        steps have as much noise. A ``plan`` that is given takes their place.
        """
        reference = self.reference(parameters)
        if plan is None:
            plan = self.plan if _keeps_plan(parameters) else self._planned(reference)
        said = {key: value for key, value in reference.privacy.items() if key not in ("settings_chosen_on", "stated")}
        if plan.limit is None and plan.stops_at_accepted is None and plan.noise_multiplier:
            said.pop("epsilon", None)
            said |= {key: getattr(plan, key) for key in ("delta", "expected_batch_size", "noise_multiplier", "steps")}
        if "simulated_batch_size" in self.configuration.privacy:
            said["simulated_batch_size"] = self.configuration.privacy["simulated_batch_size"]
        return replace(reference, privacy=said, data=reference.data if self.data is None else self.data)

    def to_json(self) -> dict[str, object]:
        """All that decides what a trial is, to be compared when a study goes on."""
        configuration = {table: dict(getattr(self.configuration, table)) for table in TABLES}
        space = {d.name: repr(d) for d in self.space.dimensions}
        data = None if self.data is None else dict(self.data)
        return {"configuration": configuration, "data": data, "space": space, "score": self.score}

    def _planned(self, reference: Configuration) -> Plan:
        """Its plan, which takes seconds to find and does not depend on how the weights are moved."""
        method = {key: value for key, value in reference.method.items() if key not in (*SHORT, "update")}
        decided_by = strict_json.dumps([method, dict(reference.privacy), dict(reference.training)])
        if decided_by not in self._plans:
            self._plans[decided_by] = reference.method_and_plan()[1]
        return self._plans[decided_by]


def _keeps_plan(parameters: Mapping[str, Value]) -> bool:
    """Whether nothing that was chosen can decide what the plan is."""
    return all((name in WORDS and name != "batch_factor") or name.startswith("model.") for name in parameters)
