"""Fewer digits, and never a smaller number: a bound stays a bound, and noise that is typed in again stays enough."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal


def rounded_up(value: float, *, digits: int) -> float:
    """The smallest number of so many digits that is not below ``value``.

    >>> rounded_up(2.36611, digits=4), rounded_up(3.0, digits=4), rounded_up(0.000123456, digits=3)
    (2.367, 3.0, 0.000124)
    """
    if not math.isfinite(value):
        return value
    return max(value, float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value))))


def at_most(epsilon: float) -> str:
    """An upper bound for people: five digits, rounded up.

    >>> at_most(2.366112), at_most(3.0), at_most(math.inf)
    ('2.3662', '3', 'infinity')
    """
    return "infinity" if epsilon == math.inf else f"{rounded_up(epsilon, digits=5):.5g}"
