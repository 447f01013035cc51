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


@pytest.mark.parametrize("check", NUMBERS)
@given(number=st.floats() | st.integers(-3, 3) | st.sampled_from([5e-324, -0.0, 1 - 2**-53, 1 + 2**-52]))
def test_a_number_passes_exactly_where_its_range_says(check: Callable[..., float], number: float) -> None:
    if NUMBERS[check](number):
        assert check(noise_multiplier=number) == number
    else:
        with pytest.raises(InvalidValue):
            check(noise_multiplier=number)


@pytest.mark.parametrize("check", [*NUMBERS, validate.count])
@pytest.mark.parametrize("value", NEVER_NUMBERS, ids=repr)
def test_what_only_looks_like_a_number_is_refused(check: Callable[..., object], value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        check(noise_multiplier=value)
    assert caught.value.given is value


@pytest.mark.parametrize("check", [*NUMBERS, validate.count])
@pytest.mark.parametrize("value", NEVER_FINITE, ids=repr)
def test_nan_and_infinity_are_refused(check: Callable[..., object], value: object) -> None:
    with pytest.raises(InvalidValue):
        check(noise_multiplier=value)


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400)], ids=["large", "small", "fraction"])
@pytest.mark.parametrize("check", NUMBERS)
def test_a_number_too_large_for_floating_point_is_refused(check: Callable[..., float], value: object) -> None:
    with pytest.raises(InvalidValue):
        check(noise_multiplier=value)


@pytest.mark.parametrize("value", [1, 1.0, Fraction(1), np.float32(1), np.float64(1), np.int64(1)], ids=repr)
def test_every_kind_of_real_number_becomes_a_plain_float(value: object) -> None:
    assert type(validate.positive(clip_norm=value)) is float
    assert validate.positive(clip_norm=value) == 1.0


@pytest.mark.parametrize("value", [3, np.int32(3), np.uint8(3)], ids=repr)
def test_every_kind_of_whole_number_becomes_a_plain_int(value: object) -> None:
    assert type(validate.count(steps=value)) is int
    assert validate.count(steps=value) == 3


@given(minimum=st.integers(-5, 5), value=st.integers(-10, 10))
def test_a_count_passes_exactly_from_its_minimum_on(minimum: int, value: int) -> None:
    if value >= minimum:
        assert validate.count(minimum=minimum, steps=value) == value
    else:
        with pytest.raises(InvalidValue, match=f"a whole number >= {minimum}"):
            validate.count(minimum=minimum, steps=value)


@pytest.mark.parametrize("value", [1.0, 2.5, np.float64(3), Fraction(2)], ids=repr)
def test_a_count_is_never_a_fraction_or_a_float(value: object) -> None:
    with pytest.raises(InvalidValue):
        validate.count(steps=value)


def test_a_count_beyond_what_floating_point_can_count_is_refused() -> None:
    assert validate.count(steps=10**18) == 10**18
    with pytest.raises(InvalidValue, match="steps must be a whole number <= 1000000000000000000"):
        validate.count(steps=10**400)


def test_one_of_returns_the_word_and_lists_the_words_in_order_where_it_refuses() -> None:
    assert a_or_b(engine="a") == "a"
    with pytest.raises(InvalidValue, match="engine must be one of a, b; given: 'c'"):
        a_or_b(engine="c")


@pytest.mark.parametrize("value", [None, 1, ["a"], b"a"], ids=repr)
def test_one_of_takes_nothing_but_a_word(value: object) -> None:
    with pytest.raises(InvalidValue):
        a_or_b(engine=value)


@pytest.mark.parametrize("value", ["", " ", "\n\t", None, 3, b"text", ["text"]], ids=repr)
def test_text_needs_something_in_it(value: object) -> None:
    with pytest.raises(InvalidValue, match="purpose must be a non-empty string"):
        validate.text(purpose=value)


def test_text_is_returned_as_it_is() -> None:
    assert validate.text(purpose=" training ") == " training "


@pytest.mark.parametrize("check", CHECKS)
def test_a_refusal_has_the_name_what_is_allowed_and_what_was_given(check: Callable[..., object]) -> None:
    with pytest.raises(InvalidValue) as caught:
        check(sampling_probability=math.nan)
    assert str(caught.value) == f"sampling_probability must be {caught.value.allowed}; given: nan"
    assert caught.value.allowed


@pytest.mark.parametrize("check", CHECKS)
def test_exactly_one_keyword_is_checked_at_a_time(check: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="exactly one keyword"):
        check()
    with pytest.raises(TypeError, match="exactly one keyword"):
        check(steps=1, records=1)
