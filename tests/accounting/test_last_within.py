"""The search behind calibration."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting.last_within import OUT_OF_SIGHT, last_within


@given(limit=st.integers(1, 10**6), power=st.floats(0.2, 2.0))
def test_a_whole_value_is_found_to_the_unit(limit: int, power: float) -> None:
    found = last_within(
        lambda value: power * math.log(value / (limit + 0.5)), safe_end=1, other_end=10**6, start=1000, whole=True
    )
    assert found == limit


@given(limit=st.floats(1e-9, 0.99), power=st.floats(0.2, 2.0))
def test_a_real_value_is_found_within_a_thousandth_and_from_inside(limit: float, power: float) -> None:
    found = last_within(lambda value: power * math.log(value / limit), safe_end=1e-10, other_end=1.0, start=0.01)
    assert found is not None
    assert -1e-3 <= power * math.log(found / limit) <= 0


@given(limit=st.floats(0.06, 1e6), power=st.floats(0.2, 2.0))
def test_the_safe_end_may_be_the_larger_one(limit: float, power: float) -> None:
    found = last_within(lambda value: -power * math.log(value / limit), safe_end=1e7, other_end=0.05, start=1.0)
    assert found is not None
    assert -1e-3 <= -power * math.log(found / limit) <= 0


def test_nothing_within_gives_none() -> None:
    assert last_within(lambda value: 1.0, safe_end=1, other_end=100, start=10) is None


def test_everything_within_gives_the_other_end() -> None:
    assert last_within(lambda value: -1.0, safe_end=1, other_end=100, start=10) == 100


def test_a_jump_over_the_limit_is_found_from_inside() -> None:
    found = last_within(
        lambda value: -OUT_OF_SIGHT if value < 50 else OUT_OF_SIGHT, safe_end=1, other_end=10**6, start=1000
    )
    assert found == pytest.approx(50, rel=1e-9)
    assert found is not None
    assert found < 50


def test_what_is_returned_was_itself_evaluated_and_found_within() -> None:
    seen: dict[float, float] = {}

    def noisy(value: float) -> float:
        seen[value] = math.log(value / 777) + 1e-4 * math.sin(1e6 * value)
        return seen[value]

    found = last_within(noisy, safe_end=1, other_end=10**6, start=1000)
    assert found is not None
    assert seen[found] <= 0
