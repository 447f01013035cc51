from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr import validate
from lehr.errors import InvalidValue


def at_least_two(**named: object) -> float:
    return validate.at_least(2, **named)


def a_or_b(**named: object) -> str:
    return validate.one_of(("b", "a"), **named)


NUMBERS: dict[Callable[..., float], Callable[[float], bool]] = {
    validate.positive: lambda x: 0 < x < math.inf,
    validate.non_negative: lambda x: 0 <= x < math.inf,
    validate.probability: lambda x: 0 < x <= 1,
    validate.delta: lambda x: 0 < x < 1,
    at_least_two: lambda x: 2 <= x < math.inf,
}
CHECKS: list[Callable[..., object]] = [*NUMBERS, validate.count, validate.text, a_or_b]
NEVER_NUMBERS = [True, "0.5", None, 0.5 + 0j, Decimal("0.5"), np.array([0.5]), np.True_]
NEVER_FINITE = [math.nan, math.inf, -math.inf, np.float32("nan")]
TOO_LARGE = [10**400, -(10**400), Fraction(10**400)]


def refused(check: Callable[..., object], value: object) -> InvalidValue:
    with pytest.raises(InvalidValue) as caught:
        check(noise_multiplier=value)
    assert caught.value.name == "noise_multiplier"
    assert caught.value.given is value
    return caught.value


@pytest.mark.parametrize("check", NUMBERS)
@given(number=st.floats() | st.integers(-3, 3) | st.sampled_from([5e-324, -0.0, 1 - 2**-53, 1 + 2**-52]))
def test_a_number_passes_exactly_in_its_range(check: Callable[..., float], number: float) -> None:
    if NUMBERS[check](number):
        assert check(noise_multiplier=number) == number
    else:
        refused(check, number)


@pytest.mark.parametrize("check", [*NUMBERS, validate.count])
def test_only_finite_real_numbers_pass(check: Callable[..., object]) -> None:
    for value in (*NEVER_NUMBERS, *NEVER_FINITE, *TOO_LARGE):
        refused(check, value)


@pytest.mark.parametrize("value", [1, 1.0, Fraction(1), np.float32(1), np.float64(1), np.int64(1)], ids=repr)
def test_every_kind_of_real_number_becomes_a_float(value: object) -> None:
    assert type(validate.positive(clip_norm=value)) is float
    assert validate.positive(clip_norm=value) == 1.0


@given(minimum=st.integers(-5, 5), value=st.integers(-10, 10))
def test_a_count_passes_exactly_from_its_minimum_on(minimum: int, value: int) -> None:
    if value >= minimum:
        assert validate.count(minimum=minimum, steps=value) == value
    else:
        with pytest.raises(InvalidValue, match="steps"):
            validate.count(minimum=minimum, steps=value)


def test_a_count_is_a_whole_number_that_floating_point_can_count() -> None:
    for value in (3, np.int32(3), np.uint8(3)):
        assert type(validate.count(steps=value)) is int
        assert validate.count(steps=value) == 3
    assert validate.count(steps=10**18) == 10**18
    for wrong in (1.0, 2.5, np.float64(3), Fraction(2), 10**18 + 1):
        refused(validate.count, wrong)


def test_words_are_checked() -> None:
    assert a_or_b(engine="a") == "a"
    assert "a, b" in refused(a_or_b, "c").allowed
    for value in (None, 1, ["a"], b"a"):
        refused(a_or_b, value)
    assert validate.text(purpose=" training ") == " training "
    for empty in ("", " ", "\n\t", None, 3, b"text", ["text"]):
        refused(validate.text, empty)


@pytest.mark.parametrize("check", CHECKS)
def test_exactly_one_keyword_is_checked_at_a_time(check: Callable[..., object]) -> None:
    for named in ({}, {"steps": 1, "records": 1}):
        with pytest.raises(TypeError):
            check(**named)
