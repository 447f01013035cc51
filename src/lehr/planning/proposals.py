"""Other settings at the ε of a plan: other batches, other steps at constant η, and what more data would give.

Nothing proposed costs more than the plan does, by the tight accountant. What is compared is the signal, q·√steps/σ, and
what a run must compute: the records that it looks at, batch times steps.

>>> plan = Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=7245, delta=1e-5)
>>> twice = next(row for row in other_batches(plan) if row.expected_batch_size == 1024)
>>> print(f"{twice.noise_multiplier:.2f}: {twice.signal_gain:.0%} more signal at {twice.cost_factor:g} times the cost")
2.15: 14% more signal at 2 times the cost
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lehr.errors import AccountantFailed, Unreachable
from lehr.planning.plan import Plan, make_plan
from lehr.planning.tan import TIGHT, WALL, estimated_epsilon, large_noise_epsilon, tight_epsilon, total_noise

BATCH_FACTORS = (1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
STEP_FACTORS = (1 / 16, 1 / 4, 4.0)
NEARLY = 0.05  # the share of its signal that a cheaper setting may lose and still be called nearly as good


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A setting at most as dear in ε as the plan, beside the plan."""

    expected_batch_size: float
    steps: int
    noise_multiplier: float
    epsilon: float
    signal: float
    signal_gain: float  # as a share of the plan's; below zero for a loss
    cost: float  # records looked at
    cost_factor: float
    learning_rate_factor: float
    above_limit: float  # what ε is above the large-noise limit of the same η, as a share
    is_plan: bool

    @property
    def is_behind_wall(self) -> bool:
        """Whether more than a tenth of its ε is paid for too small a noise."""
        return self.above_limit > WALL

    @property
    def gain_per_cost(self) -> float | None:
        """The share of signal won per share of cost added; none where no cost is added."""
        return self.signal_gain / (self.cost_factor - 1) if self.cost_factor > 1 else None

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {
            "is_behind_wall": self.is_behind_wall,
            "gain_per_cost": self.gain_per_cost,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class MoreData:
    """A plan on twice the records, δ halved, and what becomes of ε or of the noise."""

    keeps: str
    records: int
    delta: float
    expected_batch_size: float
    noise_multiplier: float
    epsilon: float
    epsilon_estimate: float
    cost_factor: float

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def other_batches(plan: Plan, *, epsilon: float | None = None) -> Iterator[Proposal]:
    """The same steps with other batches, each with the least noise that its ε allows; those out of reach are left out.

    ``epsilon`` is that of the plan, where it is known already.
    """
    allowed = plan.bound().epsilon if epsilon is None else epsilon
    batches = {_whole(plan.expected_batch_size * factor) for factor in BATCH_FACTORS if factor != 1}
    for batch in sorted({plan.expected_batch_size, *batches}):
        if batch == plan.expected_batch_size:
            yield _beside(plan, plan, allowed)
        elif batch <= plan.records:
            yield from _calibrated(plan, allowed, batch=batch, steps=plan.steps)


def other_steps(plan: Plan, *, epsilon: float | None = None) -> Iterator[Proposal]:
    """More or fewer steps at almost the same η: the batch follows as 1/√steps, the learning rate as 1/steps."""
    allowed = plan.bound().epsilon if epsilon is None else epsilon
    for steps in sorted({max(1, round(plan.steps * factor)) for factor in STEP_FACTORS}):
        batch = _whole(plan.expected_batch_size * math.sqrt(plan.steps / steps))
        if steps != plan.steps and batch <= plan.records:
            yield from _calibrated(plan, allowed, batch=batch, steps=steps)


def twice_the_data(plan: Plan, *, epsilon: float | None = None) -> Iterator[MoreData]:
    """What twice the records would give: less ε, or twice the batch, or less noise at the same ε."""
    allowed = plan.bound().epsilon if epsilon is None else epsilon
    more = replace(plan, records=2 * plan.records, delta=plan.delta / 2)
    yield _on_more_data("batch, noise and steps", more, plan)
    twice = replace(more, expected_batch_size=2 * plan.expected_batch_size)
    yield _on_more_data("sampling probability, noise and steps", twice, plan)
    for found in _within(more, allowed):
        yield _on_more_data("batch, steps and ε", found, plan)


def best_for_its_cost(rows: Sequence[Proposal]) -> Proposal | None:
    """The dearer setting with the most signal won for each share of cost added; none where no signal is won."""
    rated = [(row.gain_per_cost, row) for row in rows if row.gain_per_cost is not None and row.signal_gain > 0]
    return max(rated, key=lambda pair: pair[0])[1] if rated else None


def cheapest_nearly_as_good(rows: Sequence[Proposal]) -> Proposal | None:
    """The cheapest setting that loses little of the plan's signal; none where every cheaper one loses more."""
    good = [row for row in rows if row.cost_factor < 1 and row.signal_gain >= -NEARLY]
    return min(good, key=lambda row: row.cost_factor, default=None)


def _whole(batch: float) -> float:
    return float(max(1, round(batch)))


def _calibrated(plan: Plan, epsilon: float, *, batch: float, steps: int) -> Iterator[Proposal]:
    for found in _within(replace(plan, expected_batch_size=batch, steps=steps), epsilon):
        yield _beside(plan, found, tight_epsilon(found.event, delta=found.delta))


def _within(plan: Plan, epsilon: float) -> Iterator[Plan]:
    """The plan with the least noise that ε allows, unless no noise is found that does."""
    try:
        yield make_plan(
            epsilon=epsilon,
            delta=plan.delta,
            records=plan.records,
            expected_batch_size=plan.expected_batch_size,
            steps=plan.steps,
            accountant=TIGHT,
        )
    except (Unreachable, AccountantFailed):
        return


def _beside(plan: Plan, found: Plan, epsilon: float) -> Proposal:
    signal, before = total_noise(found).signal, total_noise(plan).signal
    cost, cost_before = found.expected_batch_size * found.steps, plan.expected_batch_size * plan.steps
    return Proposal(
        expected_batch_size=found.expected_batch_size,
        steps=found.steps,
        noise_multiplier=found.noise_multiplier,
        epsilon=epsilon,
        signal=signal,
        signal_gain=signal / before - 1,
        cost=cost,
        cost_factor=cost / cost_before,
        learning_rate_factor=plan.steps / found.steps,
        above_limit=epsilon / large_noise_epsilon(signal, delta=plan.delta) - 1,
        is_plan=found == plan,
    )


def _on_more_data(keeps: str, more: Plan, plan: Plan) -> MoreData:
    return MoreData(
        keeps=keeps,
        records=more.records,
        delta=more.delta,
        expected_batch_size=more.expected_batch_size,
        noise_multiplier=more.noise_multiplier,
        epsilon=tight_epsilon(more.event, delta=more.delta),
        epsilon_estimate=estimated_epsilon(more.event, delta=more.delta),
        cost_factor=more.expected_batch_size * more.steps / (plan.expected_batch_size * plan.steps),
    )
