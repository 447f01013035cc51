"""What an audit is about: a method under a plan, as a run had it, or as every method is attacked.

No record is read for it. What cannot be made again from its words is refused: it is attacked in Python, by
``step_game.attack``, with the method itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lehr import validate
from lehr.auditing import Audit
from lehr.errors import InvalidValue, Unreachable
from lehr.games import every_method, step_game
from lehr.games.canaries import Host
from lehr.games.every_method import DELTA, EPSILON, SAMPLING_PROBABILITY, STEPS
from lehr.games.private_methods import a_private_method
from lehr.mechanism import Method
from lehr.methods import by_name
from lehr.planning.plan import Plan
from lehr.run_folder import differences, read_config
from lehr.run_shape import PRIVATE, Callback
from lehr.training.describing import method_words

ALL = "all"
_IN_PYTHON = "; attack it in Python, by lehr.games.step_game.attack(method, plan)"


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A method under a plan with a finite ε, and the network beside the canaries, if there is one."""

    name: str
    method: Method
    plan: Plan
    host: Host | None = None

    def __post_init__(self) -> None:
        a_private_method(self.method)
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
        """Play the step game."""
        return step_game.attack(
            self.method,
            self.plan,
            subject=self.name,
            num_canaries=num_canaries,
            confidence=confidence,
            host=self.host,
            device=device,
            callbacks=callbacks,
        )


def of_run(directory: Path) -> Subject:
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
        allowed = "no trial of a search: its claim is for the whole search, of which this game would play one trial"
        raise InvalidValue("run", allowed=allowed, given=config["run"])
    if (declared := config["data"].get("declared", PRIVATE)) != PRIVATE:
        allowed = f"one that claims something: its records were declared {declared}"
        raise InvalidValue("run", allowed=allowed, given=config["run"])


def named(
    name: str,
    *,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    steps: int = STEPS,
    sampling_probability: float = SAMPLING_PROBABILITY,
) -> tuple[Subject, ...]:
    """The method of this name, or all of them, each planned for ε before the first of them is attacked."""
    known = every_method.contenders()
    if name != ALL:
        validate.one_of((*known, ALL), method=name)
    chosen = known if name == ALL else {name: known[name]}
    found = []
    for subject, contender in chosen.items():
        try:
            plan = contender.plan(epsilon=epsilon, delta=delta, steps=steps, sampling_probability=sampling_probability)
        except Unreachable as error:
            raise Unreachable(f"{subject} cannot be planned: {error}") from error
        found.append(Subject(name=subject, method=contender.build(), plan=plan, host=contender.host()))
    return tuple(found)
