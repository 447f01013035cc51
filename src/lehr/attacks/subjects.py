"""The subjects of an audit: a method under a plan, of a run's folder or by name (``lehr audit --method all``).

No record is read. A method that cannot be built again from the run's configuration is refused; attack it in Python with
``step_attack.attack``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from lehr import data, validate
from lehr.attacks import step_attack
from lehr.attacks.canaries import Host
from lehr.attacks.harness import check_private_method
from lehr.auditing import Audit
from lehr.data import InMemory
from lehr.errors import InvalidValue, Unreachable
from lehr.methods import by_name
from lehr.networks.activations import BEST_TEMPERED_SIGMOIDS, TemperedSigmoid
from lehr.planning.plan import PRIVATE, Plan
from lehr.run.folder import differences, read_config
from lehr.run.mechanism import Method
from lehr.run.shape import Callback
from lehr.training.describing import method_words
from lehr.training.public_plan import plan_for

RECORDS = 60_000
EPSILON, DELTA, STEPS, SAMPLING_PROBABILITY = 3.0, 1e-5, 400, 0.1
TEMPERED = "dpsgd on tempered sigmoids"


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodSetting:
    """A method with the settings that it is attacked with, and the network beside its canaries, if there is one.

    ``steps_factor`` is for a method that ends before its planned steps, since it spends more on some of them.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    host: Callable[[], Host | None] = lambda: None
    steps_factor: float = 1.0

    def build(self) -> Method:
        return by_name.named(self.method, **self.settings)

    def plan(
        self,
        *,
        epsilon: float = EPSILON,
        delta: float = DELTA,
        steps: int = STEPS,
        sampling_probability: float = SAMPLING_PROBABILITY,
    ) -> Plan:
        """The plan that the method is attacked under."""
        return plan_for(
            records=RECORDS,
            epsilon=epsilon,
            delta=delta,
            steps=round(self.steps_factor * validate.count(steps=steps)),
            expected_batch_size=validate.probability(sampling_probability=sampling_probability) * RECORDS,
            method=self.build(),
        )


def tempered_host() -> Host:
    """A network of tempered sigmoids that learns digits while canaries sit in coordinates that it does not use."""
    digits = data.load("digits").test
    network = nn.Sequential(nn.Linear(64, 32), TemperedSigmoid(*BEST_TEMPERED_SIGMOIDS["mnist"]), nn.Linear(32, 10))
    records = InMemory(digits.inputs.flatten(1).float() / 16, digits.targets)
    return Host(network=network, records=records, num_classes=10)


# Its steps grow dearer whenever none helps, and among canaries, who have nothing in common, few do.
_AGD = MethodSetting(
    method="agd", settings={"growth": 0.01, "step_sizes": 4, "choice_batch_size": RECORDS / 10}, steps_factor=3.5
)


def method_settings() -> Mapping[str, MethodSetting]:
    """Every method with noise, by its name, and DPSGD once more on a network of tempered sigmoids."""
    private = (name for name in by_name.METHODS if by_name.named(name).is_private)
    found = {name: _AGD if name == "agd" else MethodSetting(method=name) for name in private}
    return MappingProxyType({**found, TEMPERED: MethodSetting(method="dpsgd", host=tempered_host)})


ALL = "all"
_IN_PYTHON = "; attack it in Python, by lehr.attacks.step_attack.attack(method, plan)"


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A method under a plan with a finite ε, and the network beside the canaries, if there is one."""

    name: str
    method: Method
    plan: Plan
    host: Host | None = None

    def __post_init__(self) -> None:
        check_private_method(self.method)
        if self.plan.simulates is not None:
            raise InvalidValue("plan", allowed="one that claims something", given="a simulation")
        if not math.isfinite(self.plan.claim().epsilon):
            allowed = "one whose proven ε is finite under its plan: there is no claim to refute"
            raise InvalidValue("method", allowed=allowed, given=self.method.name)

    def attacked(
        self,
        *,
        num_canaries: int,
        confidence: float,
        device: torch.device | str = "cpu",
        callbacks: Sequence[Callback] = (),
    ) -> Audit:
        """Run the attack."""
        return step_attack.attack(
            self.method,
            self.plan,
            subject=self.name,
            num_canaries=num_canaries,
            confidence=confidence,
            host=self.host,
            device=device,
            callbacks=callbacks,
        )


def subject_of_run(directory: Path) -> Subject:
    """The method and the plan of a run, from its configuration."""
    config = read_config(directory)
    _refuse_another_claim(config)
    described, plan = config["method"], config.get("plan")
    settings = described.get("settings")
    if described["name"] not in by_name.METHODS or not isinstance(settings, dict):
        allowed = f"one of {', '.join(by_name.METHODS)}{_IN_PYTHON}"
        raise InvalidValue("method of the run", allowed=allowed, given=described["name"])
    method = by_name.named(described["name"], **settings)
    if method.is_private and plan is None:
        raise InvalidValue("plan of the run", allowed="there, in config.json", given=None)
    differing = differences(described, method_words(method))
    if differing:
        allowed = f"one that its name and settings make again{_IN_PYTHON}"
        raise InvalidValue("method of the run", allowed=allowed, given="; ".join(differing))
    return Subject(name=str(config["run"]), method=method, plan=Plan.from_json(plan))


def _refuse_another_claim(config: Mapping[str, Any]) -> None:
    """What is found is held against the ε of the plan, which must be what the run claims."""
    if config.get("trial_of") is not None:
        allowed = "no trial of a search: its claim is for the whole search, and an audit would attack one trial"
        raise InvalidValue("run", allowed=allowed, given=config["run"])
    if (declared := config["data"].get("declared", PRIVATE)) != PRIVATE:
        allowed = f"one that claims something: its records were declared {declared}"
        raise InvalidValue("run", allowed=allowed, given=config["run"])


def subjects_named(
    name: str,
    *,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    steps: int = STEPS,
    sampling_probability: float = SAMPLING_PROBABILITY,
) -> tuple[Subject, ...]:
    """The method of this name, or all of them, each planned for ε before the first of them is attacked."""
    known = method_settings()
    if name != ALL:
        validate.one_of((*known, ALL), method=name)
    chosen = known if name == ALL else {name: known[name]}
    found = []
    for subject, setting in chosen.items():
        try:
            plan = setting.plan(epsilon=epsilon, delta=delta, steps=steps, sampling_probability=sampling_probability)
        except Unreachable as error:
            raise Unreachable(f"{subject} cannot be planned: {error}") from error
        found.append(Subject(name=subject, method=setting.build(), plan=plan, host=setting.host()))
    return tuple(found)
