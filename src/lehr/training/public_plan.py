"""The plan of a run from the given numbers, with defaults for the rest. All of them are public.

>>> plan = plan_for(records=60_000, delta=1e-5, epsilon=3.0)
>>> plan.expected_batch_size, plan.steps, round(plan.noise_multiplier, 1)
(980.0, 2449, 1.3)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lehr.accounting.accountant import bound
from lehr.accounting.events import FLOAT, NOTHING, Adjacency, Event, Repeated
from lehr.accounting.filter import limit_for
from lehr.config import BANDED
from lehr.errors import InvalidValue, Unreachable
from lehr.planning import recommendation
from lehr.planning.plan import Plan, delta_for, make_plan
from lehr.run.loss_oracle import event_of
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule

MOST_REFINEMENTS = 10  # steps with more noise cost less, so that up to this many times as many fit under a limit
MOST_CANDIDATES = 10  # per accepted one, if the method has no limit of its own
EVALUATIONS = 20


def plan_for(
    *,
    records: int,
    delta: float | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    expected_batch_size: float | None = None,
    steps: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    beside: Event = NOTHING,
    noise_schedule: Schedule = CONSTANT,
    method: Method | None = None,
    largest_batch: int | None = None,
    bins: int | None = None,
    bands: int = 1,
    correlation: str = BANDED,
    max_records_per_user: int | None = None,
) -> Plan:
    """The plan. The default batch size is 4·√records; without steps and noise, there are 40 passes.

    The method's queries at every step are counted. A method with published accounting is planned by its paper's rule.
    If that rule counts accepted candidates only, ``steps`` is their number, and the plan has as many candidates as they
    can need.
    """
    delta = delta_for(delta, records=records)
    if bins is not None and expected_batch_size is None:
        expected_batch_size = records / bins
    if method is not None and not method.is_private:
        epsilon, noise_multiplier, steps = _without_privacy(epsilon, noise_multiplier, steps)
    if epsilon is None and (noise_multiplier is None or steps is None):
        raise InvalidValue("epsilon", allowed="given, unless noise_multiplier and steps both are", given=None)
    counts = (noise_multiplier, steps)
    is_batch_found = epsilon is not None and None not in counts  # the other three are given
    if expected_batch_size is None and not is_batch_found:
        expected_batch_size = usual_batch_size(records, method)
    if epsilon is not None and counts == (None, None) and expected_batch_size is not None:
        steps = recommendation.usual_steps(records, expected_batch_size)
        steps = steps if bins is None else bins * max(1, round(steps / bins))  # a part of an epoch costs all of it
    rule = None if method is None else method.published
    asked = _asked(method, records, adjacency, is_counted=rule is None)
    with _blaming(asked, steps, epsilon=epsilon, delta=delta, adjacency=adjacency):
        plan = make_plan(
            records=records,
            delta=delta,
            adjacency=adjacency,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            steps=steps,
            expected_batch_size=expected_batch_size if bins is None else None,
            beside=beside,
            noise_schedule=noise_schedule,
            asked=asked,
            accountant=_accountant(method),
            largest_batch=largest_batch,
            bins=bins,
            noise=FLOAT if method is None else method.noise.kind,
            bands=bands,
            correlation=correlation,
            max_records_per_user=max_records_per_user,
        )
    if method is not None and method.noise.needs_limit:
        return _with_limit(plan, epsilon, beside)
    return plan if rule is None or method is None else _with_all_candidates(plan, method)


@contextmanager
def _blaming(
    asked: Event, steps: int | None, *, epsilon: float | None, delta: float, adjacency: Adjacency
) -> Iterator[None]:
    """If the method's queries alone exceed ε, say so: more noise on the gradients would not help."""
    try:
        yield
    except Unreachable as error:
        if asked == NOTHING or steps is None or epsilon is None:
            raise
        alone = bound(Repeated(asked, steps), delta=delta, adjacency=adjacency).epsilon
        if alone <= epsilon:
            raise
        why = f"the method's own queries cost {alone:.3g}, {steps} times {asked}"
        raise Unreachable(f"epsilon {epsilon:g} at delta {delta:g} is too small: {why}; add noise to them") from error


def _accountant(method: Method | None) -> str | None:
    """The accountant to plan with: the paper's, that of the filter, or None for the best one."""
    if method is None or (method.published is None and not method.noise.needs_limit):
        return None
    return "rdp-balle20" if method.published is None else method.published.accountant


def _with_limit(plan: Plan, epsilon: float | None, beside: Event) -> Plan:
    """The plan with a limit instead of fixed events."""
    if epsilon is None:
        raise InvalidValue("epsilon", allowed="given if costs depend on releases", given=None)
    if beside != NOTHING:
        allowed = "nothing besides the steps if costs depend on releases"
        raise InvalidValue("method", allowed=allowed, given=str(beside))
    limit = limit_for(epsilon, plan.delta, plan.adjacency, expecting=plan.event)
    return replace(plan, steps=MOST_REFINEMENTS * plan.steps, limit=limit)


def _asked(method: Method | None, records: int, adjacency: Adjacency, *, is_counted: bool) -> Event:
    """The method's queries besides its gradients. A paper's rule ignores those without noise (``is_counted`` false)."""
    if method is None:
        return NOTHING
    if is_counted:
        return method.asked(records=records, adjacency=adjacency)
    return event_of(method.acceptance.energy, records=records, adjacency=adjacency)


def _with_all_candidates(plan: Plan, method: Method) -> Plan:
    """The plan by a paper's rule, with everything that the proven ε has to count."""
    assert method.published is not None
    plan = replace(plan, asked=_asked(method, plan.records, plan.adjacency, is_counted=True))
    if not method.published.counts_accepted_only:
        return plan
    most = method.acceptance.most_rejections
    candidates = plan.steps * (MOST_CANDIDATES if most is None else most + 1)
    return replace(plan, steps=candidates, stops_at_accepted=plan.steps)


def _without_privacy(
    epsilon: float | None, noise_multiplier: float | None, steps: int | None
) -> tuple[None, float, int]:
    if epsilon is not None:
        raise InvalidValue("epsilon", allowed="omitted for a method without privacy", given=epsilon)
    if noise_multiplier:
        raise InvalidValue("noise_multiplier", allowed="0 for a method without privacy", given=noise_multiplier)
    if steps is None:
        raise InvalidValue("steps", allowed="given for a method without privacy", given=None)
    return None, 0.0, steps


def usual_batch_size(records: int, method: Method | None) -> int:
    """4·√records; all records if the noise needs a limit, as in AGD's paper."""
    needs_all = method is not None and method.noise.needs_limit
    return records if needs_all else recommendation.usual_batch_size(records)


def expected_steps(plan: Plan) -> int:
    """The likely number of steps, which can be far below the largest number that the plan allows."""
    if plan.limit is not None:
        return max(1, plan.steps // MOST_REFINEMENTS)
    return plan.stops_at_accepted or plan.steps


def evaluate_every(steps: int) -> int:
    """The number of steps between evaluations, so that there are at most twenty."""
    return math.ceil(steps / EVALUATIONS)
