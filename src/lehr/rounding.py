"""Numbers for people: a bound in fewer digits still holds, and what is no bound keeps its digits."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_LARGEST_POWER = 20  # of e, in plain digits


def rounded_up(value: float, *, digits: int) -> float:
    """The smallest number of so many digits that is not below ``value``.

    >>> rounded_up(2.36611, digits=4), rounded_up(1.1, digits=6), rounded_up(0.000123456, digits=3)
    (2.367, 1.1, 0.000124)
    """
    if not math.isfinite(value):
        return value
    # The digits that Python prints: the binary expansion of 1.1 lies above 1.1 and would be rounded up to 1.10001.
    return max(value, float(_ceiling(Decimal(repr(float(value))), digits=digits)))


def rounded_down(value: float, *, digits: int) -> float:
    """The largest number of so many digits that is not above ``value``.

    >>> rounded_down(2.36619, digits=4), rounded_down(1.1, digits=6), rounded_down(0.000123456, digits=3)
    (2.366, 1.1, 0.000123)
    """
    if not math.isfinite(value):
        return value
    floor = Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(Decimal(repr(float(value))))
    return min(value, float(floor))


def at_least(epsilon: float) -> str:
    """A lower bound for people: five digits, rounded down.

    >>> at_least(2.366179), at_least(3.0), at_least(0.0)
    ('2.3661', '3', '0')
    """
    return "infinity" if epsilon == math.inf else f"{rounded_down(epsilon, digits=5):.5g}"


def at_most(epsilon: float) -> str:
    """An upper bound for people: five digits, rounded up.

    >>> at_most(2.366112), at_most(3.0), at_most(math.inf)
    ('2.3662', '3', 'infinity')
    """
    return "infinity" if epsilon == math.inf else f"{rounded_up(epsilon, digits=5):.5g}"


def at_most_times(epsilon: float) -> str:
    """e to the power of ε, rounded up, in plain digits while those can be taken in at a glance.

    >>> at_most_times(0.1), at_most_times(5), at_most_times(7), at_most_times(100)
    ('1.11', '149', '1,097', 'e^100')
    """
    if epsilon > _LARGEST_POWER:
        return f"e^{at_most(epsilon)}"
    power = Decimal(repr(float(epsilon))).exp()
    return f"{_ceiling(power, digits=max(3, power.adjusted() + 1)):,f}"


def exactly(value: float) -> str:
    """All the digits of a number, so that it can be typed in again.

    >>> exactly(2.0), exactly(1.0000001e-05), exactly(0.1)
    ('2', '1.0000001e-05', '0.1')
    """
    return repr(float(value)).removesuffix(".0")


def _ceiling(value: Decimal, *, digits: int) -> Decimal:
    return Context(prec=digits, rounding=ROUND_CEILING).create_decimal(value)
