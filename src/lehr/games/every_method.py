"""The step game on every method that there is, each at the same ε: what ``lehr audit --method all`` plays.

The number of records is a public number that a plan states; how many are there is the game's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import nn

from lehr import data, validate
from lehr.data import InMemory
from lehr.games.canaries import Host
from lehr.mechanism import Method
from lehr.methods import by_name
from lehr.networks.tempered_sigmoid import BEST, TemperedSigmoid
from lehr.planning.plan import Plan
from lehr.training.public_plan import plan_for

RECORDS = 60_000
EPSILON, DELTA, STEPS, SAMPLING_PROBABILITY = 3.0, 1e-5, 400, 0.1
TEMPERED = "dpsgd on tempered sigmoids"


@dataclass(frozen=True, kw_only=True, eq=False)
class Contender:
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
        """The plan of the game."""
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
    network = nn.Sequential(nn.Linear(64, 32), TemperedSigmoid(*BEST["mnist"]), nn.Linear(32, 10))
    records = InMemory(digits.inputs.flatten(1).float() / 16, digits.targets)
    return Host(network=network, records=records, num_classes=10)


# Its steps grow dearer whenever none helps, and among canaries, who have nothing in common, few do.
_AGD = Contender(
    method="agd", settings={"growth": 0.01, "step_sizes": 4, "choice_batch_size": RECORDS / 10}, steps_factor=3.5
)


def contenders() -> Mapping[str, Contender]:
    """Every method with noise, by its name, and DPSGD once more on a network of tempered sigmoids."""
    private = (name for name in by_name.METHODS if by_name.named(name).is_private)
    found = {name: _AGD if name == "agd" else Contender(method=name) for name in private}
    return MappingProxyType({**found, TEMPERED: Contender(method="dpsgd", host=tempered_host)})
