"""Schedules: values by hand, and what holds for all of them."""

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

SCHEDULES: list[Schedule] = [
    Constant(),
    LinearWarmup(steps=5, after=Cosine(total_steps=40, final_fraction=0.1)),
    Cosine(total_steps=30),
    LinearDecay(steps=10, first=1.0, last=0.52),
    StepDecay(every=7, decay=0.5),
    PiecewiseLinear(((2, 0.5), (10, 1.0), (30, 0.0))),
]


def test_a_warm_up_rises_in_equal_parts_and_then_leaves_the_other_alone() -> None:
    warm = LinearWarmup(steps=4)
    assert [warm.factor(step) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_the_schedule_under_a_warm_up_counts_the_steps_of_the_run() -> None:
    cosine = Cosine(total_steps=100)
    assert LinearWarmup(steps=4, after=cosine).factor(50) == cosine.factor(50)


def test_a_cosine_falls_to_its_final_fraction_and_stays() -> None:
    cosine = Cosine(total_steps=10, final_fraction=0.2)
    assert cosine.factor(0) == 1.0
    assert cosine.factor(5) == pytest.approx(0.6)
    assert cosine.factor(10) == cosine.factor(1000) == pytest.approx(0.2)


def test_a_line_reaches_its_last_factor_exactly() -> None:
    line = LinearDecay(steps=10, first=1.0, last=0.52)
    assert [line.factor(0), line.factor(10), line.factor(99)] == [1.0, 0.52, 0.52]
    assert line.factor(5) == pytest.approx(0.76)


def test_a_step_decay_changes_after_every_so_many_steps() -> None:
    decay = StepDecay(every=3, decay=0.5)
    assert [decay.factor(step) for step in (0, 2, 3, 5, 6)] == [1, 1, 0.5, 0.5, 0.25]


def test_points_are_joined_by_lines_and_flat_outside() -> None:
    pieces = PiecewiseLinear(((2, 0.5), (10, 1.0), (30, 0.0)))
    assert [pieces.factor(step) for step in (0, 2, 6, 10, 20, 30, 31)] == [0.5, 0.5, 0.75, 1.0, 0.5, 0.0, 0.0]


@given(st.sampled_from(SCHEDULES), st.integers(0, 10**9))
def test_every_factor_is_a_finite_number_that_is_not_negative(schedule: Schedule, step: int) -> None:
    assert 0 <= schedule.factor(step) <= 1
    assert math.isfinite(schedule.factor(step))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_the_json_form_reads_back_as_the_same_schedule(schedule: Schedule) -> None:
    assert from_json(to_json(schedule)) == schedule
    assert hash(from_json(to_json(schedule))) == hash(schedule)


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
    ],
)
def test_a_bad_json_form_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        from_json(shape)


def test_a_file_cannot_nest_schedules_without_end() -> None:
    shape: dict[str, object] = {"kind": "constant"}
    for _ in range(20):
        shape = {"kind": "linear-warmup", "steps": 2, "after": shape}
    with pytest.raises(InvalidValue):
        from_json(shape)


def test_a_schedule_of_somebody_else_has_no_json_form() -> None:
    class Mine:
        def factor(self, step: int) -> float:
            return 1.0

    with pytest.raises(InvalidValue, match="written down"):
        to_json(Mine())
