"""The plan of a run from whatever numbers were given, with sane ones for the rest. Only public numbers go in.

>>> plan = plan_for(records=60_000, delta=1e-5, epsilon=3.0)
>>> plan.expected_batch_size, plan.steps, round(plan.noise_multiplier, 1)
(980.0, 2449, 1.3)
"""

from __future__ import annotations

import math

from lehr import validate
from lehr.errors import InvalidValue
from lehr.events import NOTHING, Adjacency, Event
from lehr.planning.plan import Plan, make_plan

PASSES = 40  # over the data
EVALUATIONS = 20


def plan_for(
    *,
    records: int,
    delta: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    expected_batch_size: float | None = None,
    steps: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    beside: Event = NOTHING,
) -> Plan:
    """The plan. Without a batch size it is 4·√records; without steps and noise, the steps are forty passes."""
    validate.count(records=records)
    if epsilon is None and (noise_multiplier is None or steps is None):
        raise InvalidValue("epsilon", allowed="given, unless noise_multiplier and steps both are", given=None)
    counts = (noise_multiplier, steps)
    is_batch_found = epsilon is not None and None not in counts  # the other three are given
    if expected_batch_size is None and not is_batch_found:
        expected_batch_size = min(records, round(4 * math.sqrt(records)))
    if epsilon is not None and counts == (None, None) and expected_batch_size is not None:
        steps = max(1, round(PASSES * records / validate.positive(expected_batch_size=expected_batch_size)))
    return make_plan(
        records=records,
        delta=delta,
        adjacency=adjacency,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        steps=steps,
        expected_batch_size=expected_batch_size,
        beside=beside,
    )


def evaluate_every(steps: int) -> int:
    """So often that there are at most twenty evaluations."""
    return math.ceil(steps / EVALUATIONS)
