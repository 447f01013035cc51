"""What a run has cost: time, records looked at, and ε for what came of it. From public values only.

How many records were drawn is private, and a clock would tell it; so records are the expected ones, and times are told
to the minute, as a ledger keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from lehr.reports.rounding import at_most
from lehr.reports.run_charts import Drawn
from lehr.reports.run_reading import RunRecord

MILESTONES = (0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)  # of accuracy
MOST_MILESTONES = 4
STEPS_AT_ONCE = 100


def rows(record: RunRecord) -> dict[str, str]:
    """Names and numbers, for a table."""
    return dict(_rows(record))


def _rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    if record.minutes is not None:
        yield "Time", f"{duration(record.minutes)}, from the first charge to the last, pauses included"
    yield from _of_steps(record)
    parameters = record.config["model"].get("parameters")
    if isinstance(parameters, int):
        yield "Weights trained", f"{parameters:,}"
    if Drawn(record=record).has_epsilon:
        yield from _of_epsilon(record)
    yield from _of_budget(record)


def duration(minutes: int) -> str:
    """Minutes for people.

    >>> duration(0), duration(1), duration(59), duration(150)
    ('less than a minute', '1 minute', '59 minutes', '2 h 30 min')
    """
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"{minutes} minute{'s' * (minutes > 1)}"
    return f"{minutes // 60:,} h {minutes % 60} min"


def _of_steps(record: RunRecord) -> Iterator[tuple[str, str]]:
    plan, steps = record.plan, record.steps_charged
    if plan is None or not steps:
        return
    expected = steps * plan.expected_batch_size
    yield "Records looked at", f"{expected:,.0f} expected ({steps:,} steps of {plan.expected_batch_size:,.10g})"
    yield "Passes over the records", f"{steps * plan.sampling_probability:.4g} expected"
    if record.minutes:
        yield "Steps per minute", f"{steps / record.minutes:,.4g} on average"


def _of_epsilon(record: RunRecord) -> Iterator[tuple[str, str]]:
    """On average: the first steps of a run cost more ε than its last ones."""
    plan, last = record.plan, record.last
    if plan is None or last is None or not last.step:
        return
    each = last.epsilon_spent / last.step
    yield f"ε per {STEPS_AT_ONCE} steps", f"{at_most(STEPS_AT_ONCE * each)} on average"
    yield "ε per pass over the records", f"{at_most(each / plan.sampling_probability)} on average"
    for accuracy, epsilon in reached(record):
        yield f"ε when {accuracy:.0%} was first reached", at_most(epsilon)


def reached(record: RunRecord) -> list[tuple[float, float]]:
    """The ε at the first evaluation with so much accuracy, for the highest accuracies that were reached."""
    found = [
        (accuracy, next((row.epsilon_spent for row in record.evaluations if row.accuracy >= accuracy), math.inf))
        for accuracy in MILESTONES
    ]
    return [pair for pair in found if math.isfinite(pair[1])][-MOST_MILESTONES:]


def _of_budget(record: RunRecord) -> Iterator[tuple[str, str]]:
    budget = None if record.certificate is None else record.certificate.budget
    if budget is not None:
        spent = f"{at_most(budget.spent_epsilon)} of {at_most(budget.epsilon)}"
        yield "Budget of the records", f"{budget.dataset}: ε = {spent} spent, this run included"
