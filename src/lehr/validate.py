"""Checks for arguments. Each takes one keyword, whose name appears in the error, and returns the checked value.

>>> positive(clip_norm=0.1)
0.1
>>> probability(sampling_probability=1.5)
Traceback (most recent call last):
...
lehr.errors.InvalidValue: sampling_probability must be a number in (0, 1]; given: 1.5

The comparisons are written so that NaN fails every one of them, and booleans and strings are never numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from numbers import Integral, Real

from lehr.errors import InvalidValue

LARGEST_COUNT = 10**18


def positive(**named: object) -> float:
    """A finite number above zero."""
    return _number("a finite number > 0", lambda x: x > 0, named)


def non_negative(**named: object) -> float:
    """A finite number, zero or above."""
    return _number("a finite number >= 0", lambda x: x >= 0, named)


def probability(**named: object) -> float:
    """A number above zero and at most one."""
    return _number("a number in (0, 1]", lambda x: 0 < x <= 1, named)


def delta(**named: object) -> float:
    """The δ of (ε, δ): a number strictly between zero and one."""
    return _number("a number in (0, 1)", lambda x: 0 < x < 1, named)


def at_least(minimum: float, **named: object) -> float:
    """A finite number, ``minimum`` or above."""
    return _number(f"a finite number >= {minimum:g}", lambda x: x >= minimum, named)


def finite(**named: object) -> float:
    """A finite number, of either sign."""
    return _number("a finite number", lambda x: True, named)


def true_or_false(**named: object) -> bool:
    """A boolean itself: the word "no" counts as true in Python."""
    name, value = _only(named)
    if not isinstance(value, bool):
        raise InvalidValue(name, allowed="true or false", given=value)
    return value


def count(*, minimum: int = 1, **named: object) -> int:
    """A whole number, ``minimum`` or above, and no larger than floating point numbers can count."""
    name, value = _only(named)
    if isinstance(value, bool) or not isinstance(value, Integral) or not int(value) >= minimum:
        raise InvalidValue(name, allowed=f"a whole number >= {minimum}", given=value)
    if int(value) > LARGEST_COUNT:
        raise InvalidValue(name, allowed=f"a whole number <= {LARGEST_COUNT}", given=value)
    return int(value)


def one_of(choices: Collection[str], **named: object) -> str:
    """One of the given words."""
    name, value = _only(named)
    if not isinstance(value, str) or value not in choices:
        raise InvalidValue(name, allowed="one of " + ", ".join(sorted(choices)), given=value)
    return value


def text(**named: object) -> str:
    """A string with something in it."""
    name, value = _only(named)
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(name, allowed="a non-empty string", given=value)
    return value


def _number(allowed: str, holds: Callable[[float], bool], named: dict[str, object]) -> float:
    name, value = _only(named)
    number = _as_float(value)
    if not (math.isfinite(number) and holds(number)):
        raise InvalidValue(name, allowed=allowed, given=value)
    return number


def _as_float(value: object) -> float:
    """The value as a float; NaN, which no check passes, where it is no real number or too large to be one."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


def _only(named: dict[str, object]) -> tuple[str, object]:
    if len(named) != 1:
        raise TypeError(f"exactly one keyword is checked at a time; given: {sorted(named)}")
    return next(iter(named.items()))
