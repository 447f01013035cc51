from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.rounding import at_least, at_most, at_most_times, exactly, rounded_down, rounded_up

POSITIVE = st.floats(min_value=1e-12, max_value=1e9)


@given(POSITIVE, st.integers(min_value=2, max_value=12))
def test_a_rounded_number_is_never_smaller_and_hardly_larger(value: float, digits: int) -> None:
    assert value <= rounded_up(value, digits=digits) <= value * (1 + 10.0 ** (1 - digits) + 1e-15)


@given(POSITIVE)
def test_rounding_twice_changes_nothing(value: float) -> None:
    once = rounded_up(value, digits=8)
    assert rounded_up(once, digits=8) == pytest.approx(once, rel=1e-7)


@given(POSITIVE)
def test_what_people_read_is_never_below_the_bound(value: float) -> None:
    assert float(at_most(value)) >= value * (1 - 1e-15)


@pytest.mark.parametrize("value, shown", [(0.0, "0"), (3.0, "3"), (2.99981, "2.9999"), (math.inf, "infinity")])
def test_examples(value: float, shown: str) -> None:
    assert at_most(value) == shown


@pytest.mark.parametrize("value", [1.1, 0.1, 2.2, 1e-5, 123456.0])
def test_what_has_few_digits_keeps_them(value: float) -> None:
    assert rounded_up(value, digits=6) == value


@pytest.mark.parametrize(
    "epsilon, shown",
    [(0.0, "1"), (1.0, "2.72"), (3.0, "20.1"), (5.0, "149"), (7.0, "1,097"), (20.0, "485,165,196"), (50.0, "e^50")],
)
def test_times_are_plain_digits_rounded_up(epsilon: float, shown: str) -> None:
    assert at_most_times(epsilon) == shown


@given(st.floats(min_value=0, max_value=20))
def test_times_are_never_too_few(epsilon: float) -> None:
    assert float(at_most_times(epsilon).replace(",", "")) >= math.exp(epsilon) * (1 - 1e-15)


@given(POSITIVE)
def test_an_exact_number_can_be_typed_in_again(value: float) -> None:
    assert float(exactly(value)) == value


@given(POSITIVE, st.integers(1, 12))
def test_rounded_down_is_never_above_and_hardly_below(value: float, digits: int) -> None:
    assert value * (1 - 10.0 ** (1 - digits) - 1e-15) <= rounded_down(value, digits=digits) <= value


@given(POSITIVE)
def test_a_lower_bound_that_people_read_is_never_above_it(value: float) -> None:
    assert float(at_least(value)) <= value * (1 + 1e-15)


@pytest.mark.parametrize("value, shown", [(0.0, "0"), (3.0, "3"), (2.99989, "2.9998"), (math.inf, "infinity")])
def test_lower_bounds_are_rounded_down(value: float, shown: str) -> None:
    assert at_least(value) == shown
