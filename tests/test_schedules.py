"""Schedules: values by hand, and properties of all of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidValue
from lehr.schedules import (
    Constant,
    Cosine,
    LinearDecay,
    LinearWarmup,
    PiecewiseLinear,
    Schedule,
    StepDecay,
    from_json,
    to_json,
)

COSINE = Cosine(total_steps=10, final_fraction=0.2)
SCHEDULES: list[tuple[Schedule, dict[int, float]]] = [
    (Constant(), {0: 1.0, 99: 1.0}),
    (COSINE, {0: 1.0, 5: 0.6, 10: 0.2, 1000: 0.2}),
    (LinearWarmup(steps=4), {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0}),
    (LinearWarmup(steps=4, after=COSINE), {0: 0.25 * COSINE.factor(0), 5: 0.6}),  # counts the steps of the run
    (LinearDecay(steps=10, first=1.0, last=0.52), {0: 1.0, 5: 0.76, 10: 0.52, 99: 0.52}),
    (StepDecay(every=3, decay=0.5), {0: 1, 2: 1, 3: 0.5, 5: 0.5, 6: 0.25}),
    (PiecewiseLinear(((2, 0.5), (10, 1.0), (30, 0.0))), {0: 0.5, 2: 0.5, 6: 0.75, 10: 1.0, 20: 0.5, 30: 0.0, 31: 0.0}),
]


@pytest.mark.parametrize("schedule, factors", SCHEDULES, ids=lambda value: type(value).__name__)
def test_factors_are_those_computed_by_hand(schedule: Schedule, factors: dict[int, float]) -> None:
    assert {step: schedule.factor(step) for step in factors} == pytest.approx(factors)
    assert from_json(to_json(schedule)) == schedule
    assert hash(from_json(to_json(schedule))) == hash(schedule)


def test_a_line_ends_exactly_at_its_last_factor() -> None:
    assert LinearDecay(steps=10, first=1.0, last=0.52).factor(10) == 0.52


@given(st.sampled_from([schedule for schedule, _ in SCHEDULES]), st.integers(0, 10**9))
def test_every_factor_is_between_0_and_1(schedule: Schedule, step: int) -> None:
    assert 0 <= schedule.factor(step) <= 1


def nested(depth: int) -> dict[str, object]:
    return {"kind": "linear-warmup", "steps": 2, "after": nested(depth - 1)} if depth else {"kind": "constant"}


@pytest.mark.parametrize(
    "shape",
    [
        None,
        {"kind": "os.system"},
        {"kind": []},
        {"kind": "cosine"},
        {"kind": "constant", "surplus": 1},
        {"kind": "cosine", "total_steps": 0, "final_fraction": 0.0},
        {"kind": "cosine", "total_steps": 5, "final_fraction": math.nan},
        {"kind": "linear-warmup", "steps": 5, "after": None},
        {"kind": "piecewise-linear", "points": []},
        {"kind": "piecewise-linear", "points": [[5, 1.0], [5, 0.5]]},
        {"kind": "piecewise-linear", "points": [[0, 1.0, 2.0]]},
        {"kind": "step-decay", "every": 5, "decay": 1.5},
        pytest.param(nested(20), id="nested too deep"),
    ],
)
def test_a_bad_json_form_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        from_json(shape)


def test_a_users_own_schedule_has_no_json_form() -> None:
    class Mine:
        def factor(self, step: int) -> float:
            return 1.0

    with pytest.raises(InvalidValue):
        to_json(Mine())
