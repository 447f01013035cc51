"""ε at constant η, and the Rényi divergence of a step over its approximation: Figures 2 and 3 of the TAN paper.

Both are drawn for a plan of one's own. On the first, each line is a number of steps, and each point samples as many
records as keep η the same. On the second, each line is a noise multiplier, at one η of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lehr.accounting.rdp import renyi_divergences
from lehr.events import Adjacency, Gaussian, PoissonSampled
from lehr.planning.plan import Plan
from lehr.planning.tan import FAIR_FROM, TotalNoise, balle20_epsilon, run_at, tight_epsilon, total_noise

STEP_FACTORS = (1 / 16, 1.0, 16.0)
POINTS = 9
ORDERS = tuple(float(order) for order in (*range(2, 17), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256))
RATIO_NOISE_MULTIPLIERS = (0.5, 1.0, FAIR_FROM, 4.0)
_SMALLEST, _LARGEST = 0.5, 8.0  # where the paper's figure begins, and where nothing changes any more


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """One setting of the constant η."""

    noise_multiplier: float
    sampling_probability: float
    epsilon: float
    epsilon_balle20: float | None  # on the plan's own line only


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """ε against the noise multiplier at one number of steps."""

    steps: int
    is_of_plan: bool
    points: tuple[CurvePoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioCurve:
    """The divergence of a step over order·η², at each order; infinite where the divergence is."""

    noise_multiplier: float
    sampling_probability: float
    is_of_plan: bool
    orders: tuple[float, ...]
    ratios: tuple[float, ...]


def curves(plan: Plan, *, step_factors: Sequence[float] = STEP_FACTORS) -> Iterator[Curve]:
    """Figure 2, a line at a time: fewer steps than planned, as planned, and more. A line of one point is left out."""
    total = total_noise(plan)
    for steps in sorted({max(1, round(plan.steps * factor)) for factor in step_factors}):
        points = tuple(_points(plan, total, steps))
        if len(points) > 1:
            yield Curve(steps=steps, is_of_plan=steps == plan.steps, points=points)


def ratio_curves(plan: Plan) -> tuple[RatioCurve, ...]:
    """Figure 3: a few noise multipliers and the plan's own, smallest first."""
    total = total_noise(plan)
    noises = sorted({*RATIO_NOISE_MULTIPLIERS, plan.noise_multiplier})
    possible = [noise for noise in noises if _is_possible(total, noise, total.steps)]
    return tuple(_ratio_curve(plan, total, noise) for noise in possible)


def deciding_order(plan: Plan) -> float:
    """The order at which the estimate takes its minimum, 1 + √ln(1/δ)/η."""
    return 1 + math.sqrt(-math.log(plan.delta)) / total_noise(plan).eta


def _points(plan: Plan, total: TotalNoise, steps: int) -> Iterator[CurvePoint]:
    first = min(_SMALLEST, plan.noise_multiplier / 1.5)
    last = max(_LARGEST, plan.noise_multiplier * 1.5)
    apart = (last / first) ** (1 / (POINTS - 1))
    noises = {first * apart**place for place in range(POINTS)}
    if steps == plan.steps:
        noises.add(plan.noise_multiplier)
    full = math.sqrt(steps) / total.signal  # where every record takes part in every step
    if full < last:
        noises.add(full)
    for noise in sorted(noises):
        if _is_possible(total, noise, steps):
            yield _point(plan, total, steps, noise)


def _point(plan: Plan, total: TotalNoise, steps: int, noise: float) -> CurvePoint:
    run = run_at(total, noise, steps=steps)
    return CurvePoint(
        noise_multiplier=noise,
        sampling_probability=min(1.0, total.sampling_probability(noise, steps=steps)),
        epsilon=tight_epsilon(run, delta=plan.delta),
        epsilon_balle20=balle20_epsilon(run, delta=plan.delta) if steps == plan.steps else None,
    )


def _ratio_curve(plan: Plan, total: TotalNoise, noise: float) -> RatioCurve:
    probability = min(1.0, total.sampling_probability(noise))
    step = PoissonSampled(probability, Gaussian(noise))
    found = renyi_divergences(step, ORDERS, Adjacency.ADD_OR_REMOVE_ONE, only_these=True)
    ratios = (value / (order * total.eta_step**2) for order, value in zip(ORDERS, found.tolist(), strict=True))
    return RatioCurve(
        noise_multiplier=noise,
        sampling_probability=probability,
        is_of_plan=noise == plan.noise_multiplier,
        orders=ORDERS,
        ratios=tuple(ratios),
    )


def _is_possible(total: TotalNoise, noise: float, steps: int) -> bool:
    return total.sampling_probability(noise, steps=steps) <= 1 + 1e-9  # full batches, but for rounding
