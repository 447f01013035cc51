"""The subjects of an audit: a method under a plan, of a run's folder or by name (``lehr audit --method all``).

No record is read. A method that cannot be built again from the run's configuration is refused; attack it in Python with
``step_attack.attack``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr import validate
from lehr.attacks.harness import check_private_method
from lehr.errors import InvalidValue, Unreachable
from lehr.methods import by_name
from lehr.planning.plan import PRIVATE, Plan
from lehr.run.folder import differences, read_config
from lehr.run.mechanism import Method
from lehr.training.describing import method_words
from lehr.training.public_plan import plan_for

ALL = "all"
RECORDS = 60_000
EPSILON, DELTA, STEPS, SAMPLING_PROBABILITY = 3.0, 1e-5, 400, 0.1

# AGD's steps cost more whenever none helps, and among canaries, who have nothing in common, few do. So it ends before
# its planned steps, of which it gets more.
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "agd": {"growth": 0.01, "step_sizes": 4, "choice_batch_size": RECORDS / 10}
}
_STEPS_FACTOR = {"agd": 3.5}
_IN_PYTHON = "; attack it in Python, by lehr.attacks.step_attack.attack(method, plan)"


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A method under a plan with a finite ε."""

    name: str
    method: Method
    plan: Plan

    def __post_init__(self) -> None:
        check_private_method(self.method)
        if self.plan.simulates is not None:
            raise InvalidValue("plan", allowed="one that claims something", given="a simulation")
        if not math.isfinite(self.plan.claim().epsilon):
            allowed = "one whose proven ε is finite under its plan: there is no claim to refute"
            raise InvalidValue("method", allowed=allowed, given=self.method.name)


def private_methods() -> tuple[str, ...]:
    """The names of all methods with noise."""
    return tuple(name for name in by_name.METHODS if by_name.named(name).is_private)


def subject_named(
    name: str,
    *,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    steps: int = STEPS,
    sampling_probability: float = SAMPLING_PROBABILITY,
) -> Subject:
    """The method of this name, planned for ε."""
    validate.one_of(private_methods(), method=name)
    method = by_name.named(name, **_SETTINGS.get(name, {}))
    try:
        plan = plan_for(
            records=RECORDS,
            epsilon=epsilon,
            delta=delta,
            steps=round(_STEPS_FACTOR.get(name, 1) * validate.count(steps=steps)),
            expected_batch_size=validate.probability(sampling_probability=sampling_probability) * RECORDS,
            method=method,
        )
    except Unreachable as error:
        raise Unreachable(f"{name} cannot be planned: {error}") from error
    return Subject(name=name, method=method, plan=plan)


def subjects_named(name: str, **numbers: Any) -> tuple[Subject, ...]:
    """The method of this name, or all of them, each planned before the first of them is attacked."""
    methods = private_methods()
    validate.one_of((*methods, ALL), method=name)
    return tuple(subject_named(one, **numbers) for one in (methods if name == ALL else (name,)))


def subject_of_run(directory: Path) -> Subject:
    """The method and the plan of a run, from its configuration."""
    config = read_config(directory)
    # The result is compared with the ε of the plan, which must be what the run claims.
    if config.get("trial_of") is not None:
        allowed = "no trial of a search: its claim is for the whole search, and an audit would attack one trial"
        raise InvalidValue("run", allowed=allowed, given=config["run"])
    if (declared := config["data"].get("declared", PRIVATE)) != PRIVATE:
        allowed = f"one that claims something: its records were declared {declared}"
        raise InvalidValue("run", allowed=allowed, given=config["run"])
    described, plan = config["method"], config.get("plan")
    settings = described.get("settings")
    if described["name"] not in by_name.METHODS or not isinstance(settings, dict):
        allowed = f"one of {', '.join(by_name.METHODS)}{_IN_PYTHON}"
        raise InvalidValue("method of the run", allowed=allowed, given=described["name"])
    method = by_name.named(described["name"], **settings)
    if method.is_private and plan is None:
        raise InvalidValue("plan of the run", allowed="there, in config.json", given=None)
    if differing := differences(described, method_words(method)):
        allowed = f"one that its name and settings make again{_IN_PYTHON}"
        raise InvalidValue("method of the run", allowed=allowed, given="; ".join(differing))
    return Subject(name=str(config["run"]), method=method, plan=Plan.from_json(plan))
