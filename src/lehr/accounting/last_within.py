"""A search for the last value, from a safe end, at which a rising quantity is still within its limit.

>>> last_within(lambda value: math.log(value / 50), safe_end=1, other_end=10**6, start=1000, whole=True)
50.0

The quantity is given as a logarithm of its ratio to the limit, smooth in the logarithm of the value. What is returned
has itself been evaluated and found within: rounding can make the search stop early, never overshoot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

OUT_OF_SIGHT = 30.0  # stands for the logarithm of a ratio of zero or infinity

_CLOSE_ENOUGH = 3e-4  # of the logarithm below the limit
_MOST_TRIES = 120


def last_within(
    log_ratio: Callable[[float], float], *, safe_end: float, other_end: float, start: float, whole: bool = False
) -> float | None:
    """The last value within the limit, to 0.03 % of the limit or, if ``whole``, to the unit; none if there is none."""
    known: dict[float, float] = {}

    def ratio_at(value: float) -> float:
        if value not in known:
            known[value] = log_ratio(value)
        return known[value]

    is_start_within = ratio_at(start) <= 0
    inside = outside = start
    for value in _further_and_further(start, other_end if is_start_within else safe_end, whole):
        inside, outside = (outside, value) if is_start_within else (value, inside)
        if (ratio_at(value) <= 0) != is_start_within:
            break
        inside, outside = value, value
    else:
        return other_end if is_start_within else None
    return _narrow(ratio_at, inside, outside, whole)


def _further_and_further(start: float, end: float, whole: bool) -> Iterator[float]:
    """Values from ``start`` to ``end``, at logarithmic distances that double; ``end`` is the last."""
    distance = math.copysign(1.0, end - start)
    value = start
    while value != end:
        value = value * math.exp(distance)
        value = float(round(value)) if whole else value
        if (end - value) * distance <= 0:
            value = end
        yield value
        distance *= 2


def _narrow(ratio_at: Callable[[float], float], inside: float, outside: float, whole: bool) -> float:
    """Regula falsi with the Illinois rule: an end that stays twice loses half of its pull, so that both ends move."""
    aim = 0.0 if whole else _CLOSE_ENOUGH / 2  # a little inside, so that a good guess ends the search
    below, above = -ratio_at(inside) - aim, ratio_at(outside) + aim
    was_inside: bool | None = None
    for attempt in range(_MOST_TRIES):
        if _is_done(ratio_at(inside), inside, outside, whole):
            break
        share = 0.5 if attempt % 5 == 4 else below / (above + below)
        middle = _between(inside, outside, share, whole)
        is_inside = ratio_at(middle) <= 0
        if is_inside:
            inside, below = middle, -ratio_at(middle) - aim
            above = above / 2 if was_inside is True else above
        else:
            outside, above = middle, ratio_at(middle) + aim
            below = below / 2 if was_inside is False else below
        was_inside = is_inside
    return inside


def _is_done(log_ratio: float, inside: float, outside: float, whole: bool) -> bool:
    if whole:
        return abs(outside - inside) <= 1
    return log_ratio >= -_CLOSE_ENOUGH or math.isclose(inside, outside, rel_tol=1e-12)


def _between(inside: float, outside: float, share: float, whole: bool) -> float:
    value: float = inside * (outside / inside) ** min(max(share, 0.01), 0.99)
    if not whole:
        return value
    low, high = sorted((inside, outside))
    return min(max(float(round(value)), low + 1), high - 1)
