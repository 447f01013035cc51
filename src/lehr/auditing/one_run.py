"""ε from one training run with many canaries, each in or out by a coin of its own (Steinke, Nasr & Jagielski 2023).

Under (ε, δ) the number of right guesses is hardly larger than that of independent guesses which are right with
probability e^ε / (1 + e^ε), although all of them look at the same run. The bound has the form of their Theorem 5.2 with
a smaller factor at δ, which ``one_run.proof.md`` derives.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import special

from lehr import validate
from lehr.auditing.lower_bound import LowerBound, a_confidence, a_delta
from lehr.errors import InvalidValue

_HALVINGS = 60
_SMALLEST_NORMAL_LOG = -690.0
_LARGEST_EXPONENT = 700.0


def lower_bound(*, right: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> LowerBound:
    """ε at ``delta`` that ``right`` of ``guesses`` show, made about some of ``canaries`` after the run.

    How many guesses are made is fixed before the coins are looked at; which canaries they are about may depend on the
    run. An abstention is no guess and no error.

    >>> round(lower_bound(right=90, guesses=100, canaries=1000, delta=1e-5).epsilon, 2)
    1.63
    """
    a_count_of_guesses(right=right, guesses=guesses, canaries=canaries)
    a_delta(delta=delta)
    a_confidence(confidence=confidence)

    def refuted(epsilon: float) -> bool:
        p = p_value(epsilon, right=right, guesses=guesses, canaries=canaries, delta=delta)
        return p <= 1 - confidence

    return LowerBound(epsilon=_largest(refuted), delta=delta, confidence=confidence, by="one run")


def p_value(epsilon: float, *, right: int, guesses: int, canaries: int, delta: float) -> float:
    """A bound on the probability of so many right guesses, or more, if the training is (``epsilon``, ``delta``)."""
    if right == 0:
        return 1.0
    at_least, over_exactly = _tail(epsilon, right=right, guesses=guesses)
    if over_exactly == math.inf:
        return 1.0
    return min(1.0, at_least + delta * canaries * (1 - at_least) * over_exactly / right)


def a_count_of_guesses(*, right: int, guesses: int, canaries: int) -> None:
    """Refuses more right guesses than guesses, and more guesses than canaries."""
    validate.count(canaries=canaries)
    validate.count(guesses=guesses, minimum=0)
    validate.count(right=right, minimum=0)
    if guesses > canaries:
        raise InvalidValue("guesses", allowed=f"at most one for each of {canaries} canaries", given=guesses)
    if right > guesses:
        raise InvalidValue("right", allowed=f"at most the {guesses} guesses", given=right)


def _tail(epsilon: float, *, right: int, guesses: int) -> tuple[float, float]:
    """P(B ≥ right), and its ratio to P(B = right), for B binomial with success probability e^ε / (1 + e^ε)."""
    at_least = float(special.betainc(right, guesses - right + 1, special.expit(epsilon)))
    log_exactly = _log_exactly(epsilon, right=right, guesses=guesses)
    if log_exactly > _SMALLEST_NORMAL_LOG and at_least > 0:
        return at_least, at_least * math.exp(-log_exactly)
    # Too small for a double, so far above the mean: the terms then fall at least as fast as a geometric series.
    following = math.exp(min(epsilon, _LARGEST_EXPONENT)) * (guesses - right) / (right + 1)
    return at_least, 1 / (1 - following) if following < 1 else math.inf


def _log_exactly(epsilon: float, *, right: int, guesses: int) -> float:
    wrong = guesses - right
    ways = special.gammaln(guesses + 1) - special.gammaln(right + 1) - special.gammaln(wrong + 1)
    return float(ways + right * special.log_expit(epsilon) + wrong * special.log_expit(-epsilon))


def _largest(refuted: Callable[[float], bool]) -> float:
    """A refuted ε next to one that is not; 0 where 0 is not refuted."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
