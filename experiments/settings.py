"""A paper's setting of one data set, read from ``presets``, and its ε: by the papers' rule, and proven.

Adjacency is add-or-remove-one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from lehr.accounting import EpsilonCurve, bound
from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.accounting.rdp import RDP_MIRONOV17

DELTA = 1e-5


def read_presets(name: str) -> dict[str, Any]:
    """The tables of a file of presets."""
    return tomllib.loads((Path(__file__).parent / "presets" / f"{name}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set and the plan of private runs on it. ``printed`` has the paper's accuracies."""

    title: str
    data: str
    network: str
    records: int
    batch: int
    noise_multiplier: float
    steps: int
    evaluate_every: int
    seeds: int
    printed: Mapping[str, float] = field(default_factory=dict, hash=False)

    def published_epsilon(self, steps: int) -> float:
        """The ε of so many steps by the moments accountant of the papers (``rdp-mironov17``)."""
        return published(self.batch / self.records, self.noise_multiplier)(steps)

    def proven_epsilon(self, steps: int) -> float:
        """The smallest proven ε of a plan of so many steps."""
        return proven(self.batch / self.records, self.noise_multiplier, steps)

    def proven_curve(self, largest_steps: int) -> EpsilonCurve:
        """The proven ε of many numbers of steps: never less than the smallest, and within half a percent of it."""
        return curve(self.batch / self.records, self.noise_multiplier, largest_steps)


def _step(sampling_probability: float, noise_multiplier: float) -> PoissonSampled:
    return PoissonSampled(sampling_probability, Gaussian(noise_multiplier))


@lru_cache
def published(sampling_probability: float, noise_multiplier: float) -> Callable[[int], float]:
    step = _step(sampling_probability, noise_multiplier)
    return RDP_MIRONOV17.repeated(step, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


@lru_cache
def proven(sampling_probability: float, noise_multiplier: float, steps: int) -> float:
    event = Repeated(_step(sampling_probability, noise_multiplier), steps)
    return bound(event, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE).epsilon


@lru_cache
def curve(sampling_probability: float, noise_multiplier: float, largest_steps: int) -> EpsilonCurve:
    return EpsilonCurve(_step(sampling_probability, noise_multiplier), delta=DELTA, largest_steps=largest_steps)
