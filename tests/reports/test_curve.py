from __future__ import annotations

import itertools

import pytest

from lehr.planning.plan import Plan
from lehr.reports.curve import POINTS, points


def _plan(steps: int) -> Plan:
    return Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=steps, delta=1e-5)


@pytest.mark.parametrize("steps", [1, 7, 5000])
def test_points_run_from_nothing_to_the_whole_plan(steps: int) -> None:
    plan = _plan(steps)
    found = points(plan)
    assert (found[0].steps, found[0].epsilon) == (0, 0.0)
    assert found[-1].steps == steps
    assert len(found) == min(POINTS, steps + 1)
    assert all(a.steps < b.steps and a.epsilon <= b.epsilon for a, b in itertools.pairwise(found))


def test_points_are_upper_bounds_and_close() -> None:
    plan = _plan(5000)
    for point in points(plan, most=5)[1:]:
        exact = _plan(point.steps).bound().epsilon
        assert exact * (1 - 1e-9) <= point.epsilon <= exact * 1.005


def test_the_last_point_is_the_bound_of_the_plan() -> None:
    plan = _plan(300)
    assert points(plan)[-1].epsilon == plan.bound().epsilon
