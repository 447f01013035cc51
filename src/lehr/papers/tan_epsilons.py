"""What the settings of TAN (Sander, Stock & Sablayrolles 2023) cost, and the lines of its Figures 2 and 3.

>>> reference = Setting(batch=16_384, records=IMAGENET, steps=72_000, noise_multiplier=2.5, delta=8e-7)
>>> found = epsilons(reference)
>>> f"{found.balle20:.3f} {found.estimate:.3f} {found.tight:.3f}"
'7.954 8.215 7.465'
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lehr.planning.constant_eta import RatioCurve
    from lehr.planning.plan import Plan

IMAGENET = 1_281_167
IMAGENET_DELTA = 8e-7
IMAGENET_NOISE = 2.5
IMAGENET_STEPS = 72_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The numbers that decide ε."""

    batch: float
    records: int
    steps: int
    noise_multiplier: float
    delta: float

    @property
    def eta(self) -> float:
        """The signal of one record over the noise, in the whole run."""
        return self.batch / self.records * math.sqrt(self.steps / 2) / self.noise_multiplier

    def plan(self) -> Plan:
        from lehr.planning.plan import Plan

        return Plan(
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.batch,
            records=self.records,
            steps=self.steps,
            delta=self.delta,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Epsilons:
    """ε by the accountant of the paper, from η alone, which proves nothing, and by the tight one."""

    balle20: float
    estimate: float
    tight: float


@cache
def epsilons(setting: Setting) -> Epsilons:
    """What a setting costs, by three rules."""
    from lehr.planning import tan

    event, delta = setting.plan().event, setting.delta
    return Epsilons(
        balle20=tan.balle20_epsilon(event, delta=delta),
        estimate=tan.estimated_epsilon(event, delta=delta),
        tight=tan.tight_epsilon(event, delta=delta),
    )


def constant_eta(*, device: str, data_dir: str | None, eta: float, steps: int) -> dict[str, Any]:
    """A line of Figure 2: ε against the noise multiplier, with batches that keep η. Neither device nor data is used."""
    from lehr.planning.constant_eta import curves

    probability = math.sqrt(2 / steps) * eta * IMAGENET_NOISE
    at = Setting(
        batch=probability * IMAGENET,
        records=IMAGENET,
        steps=steps,
        noise_multiplier=IMAGENET_NOISE,
        delta=IMAGENET_DELTA,
    )
    [curve] = curves(at.plan(), step_factors=(1.0,))
    return {
        "noise_multiplier": [point.noise_multiplier for point in curve.points],
        "sampling_probability": [point.sampling_probability for point in curve.points],
        "epsilon": [point.epsilon for point in curve.points],
        "epsilon_balle20": [point.epsilon_balle20 for point in curve.points],
    }


@cache
def divergence_ratios(eta_step: float) -> tuple[RatioCurve, ...]:
    """The lines of Figure 3: the divergence of a step over its approximation, at one η of a step."""
    from lehr.planning.constant_eta import ratio_curves

    batch = math.sqrt(2) * eta_step * IMAGENET_NOISE * IMAGENET
    at = Setting(
        batch=batch,
        records=IMAGENET,
        steps=IMAGENET_STEPS,
        noise_multiplier=IMAGENET_NOISE,
        delta=IMAGENET_DELTA,
    )
    return ratio_curves(at.plan())
