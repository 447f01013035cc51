from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.rounding import at_least, at_most, at_most_times, exactly, rounded_down, rounded_up

POSITIVE = st.floats(min_value=1e-12, max_value=1e9)
DIGITS = st.integers(min_value=2, max_value=12)


@given(POSITIVE, DIGITS)
def test_bounds_are_rounded_to_the_safe_side(value: float, digits: int) -> None:
    tolerance = 10.0 ** (1 - digits) + 1e-15
    assert value <= rounded_up(value, digits=digits) <= value * (1 + tolerance)
    assert value * (1 - tolerance) <= rounded_down(value, digits=digits) <= value
    assert float(at_least(value)) * (1 - 1e-15) <= value <= float(at_most(value)) * (1 + 1e-15)
    assert float(exactly(value)) == value


@given(POSITIVE)
def test_rounding_twice_changes_nothing(value: float) -> None:
    once = rounded_up(value, digits=8)
    assert rounded_up(once, digits=8) == pytest.approx(once, rel=1e-7)


@pytest.mark.parametrize("value", [1.1, 0.1, 2.2, 1e-5, 123456.0])
def test_few_digits_are_kept(value: float) -> None:
    assert rounded_up(value, digits=6) == value


@pytest.mark.parametrize(
    "value, upper, lower",
    [(0.0, "0", "0"), (3.0, "3", "3"), (2.99981, "2.9999", "2.9998"), (math.inf, "infinity", "infinity")],
)
def test_examples(value: float, upper: str, lower: str) -> None:
    assert (at_most(value), at_least(value)) == (upper, lower)


@pytest.mark.parametrize(
    "epsilon, shown",
    [(0.0, "1"), (1.0, "2.72"), (3.0, "20.1"), (5.0, "149"), (7.0, "1,097"), (20.0, "485,165,196"), (50.0, "e^50")],
)
def test_factors_are_plain_digits_rounded_up(epsilon: float, shown: str) -> None:
    assert at_most_times(epsilon) == shown


@given(st.floats(min_value=0, max_value=20))
def test_factors_are_never_too_small(epsilon: float) -> None:
    assert float(at_most_times(epsilon).replace(",", "")) >= math.exp(epsilon) * (1 - 1e-15)
