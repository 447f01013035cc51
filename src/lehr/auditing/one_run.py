"""ε from one training run with many canaries, each in or out by a coin of its own (Steinke, Nasr & Jagielski 2023).

Under (ε, δ) the number of right guesses is hardly larger than that of independent guesses which are right with
probability e^ε / (1 + e^ε), although all of them look at the same run. The bound has the form of their Theorem 5.2 with
a smaller factor at δ, which ``one_run.proof.md`` derives.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lehr import validate
from lehr.auditing.bounds import GAUSSIAN_TRADEOFF, LowerBound, check_confidence, check_delta, epsilon_from_mu
from lehr.auditing.scores import Floats
from lehr.errors import InvalidValue

_HALVINGS = 60
_SMALLEST_NORMAL_LOG = -690.0
_LARGEST_EXPONENT = 700.0
_ROUNDS, _AT_ONCE = 5, 64
_MORE_THAN_CERTAIN = 1 + 1e-9  # rounding must not refute


def lower_bound(*, right: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> LowerBound:
    """ε at ``delta`` that ``right`` of ``guesses`` show, made about some of ``canaries`` after the run.

    How many guesses are made is fixed before the coins are looked at; which canaries they are about may depend on the
    run. An abstention is no guess and no error.

    >>> round(lower_bound(right=90, guesses=100, canaries=1000, delta=1e-5).epsilon, 2)
    1.63
    """
    check_guesses(right=right, guesses=guesses, canaries=canaries)
    check_delta(delta=delta)
    check_confidence(confidence=confidence)

    def is_refuted(epsilon: float) -> bool:
        p = p_value(epsilon, right=right, guesses=guesses, canaries=canaries, delta=delta)
        return p <= 1 - confidence

    low, high = 0.0, 1.0
    while is_refuted(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    # Next to an ε that is not refuted; 0, which certifies nothing, where 0 is not.
    return LowerBound(epsilon=low if is_refuted(0.0) else 0.0, delta=delta, confidence=confidence, by="one run")


def p_value(epsilon: float, *, right: int, guesses: int, canaries: int, delta: float) -> float:
    """A bound on the probability of so many right guesses, or more, if the training is (``epsilon``, ``delta``)."""
    if right == 0:
        return 1.0
    at_least, over_exactly = _tail(epsilon, right=right, guesses=guesses)
    if over_exactly == math.inf:
        return 1.0
    return min(1.0, at_least + delta * canaries * (1 - at_least) * over_exactly / right)


def check_guesses(*, right: int, guesses: int, canaries: int) -> None:
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
    wrong = guesses - right
    at_least = float(special.betainc(right, wrong + 1, special.expit(epsilon)))
    log_ways = special.gammaln(guesses + 1) - special.gammaln(right + 1) - special.gammaln(wrong + 1)
    log_exactly = float(log_ways + right * special.log_expit(epsilon) + wrong * special.log_expit(-epsilon))
    if log_exactly > _SMALLEST_NORMAL_LOG and at_least > 0:
        return at_least, at_least * math.exp(-log_exactly)
    # Too small for a double, so far above the mean: the terms then fall at least as fast as a geometric series.
    following = math.exp(min(epsilon, _LARGEST_EXPONENT)) * wrong / (right + 1)
    return at_least, 1 / (1 - following) if following < 1 else math.inf


def tradeoff_lower_bound(
    *, right: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95
) -> LowerBound:
    """ε at ``delta`` of the largest μ that ``right`` of ``guesses`` refute, made about some of ``canaries``.

    How many guesses are made is fixed before the coins are looked at; which canaries they are about may depend on the
    run.

    >>> round(tradeoff_lower_bound(right=90, guesses=100, canaries=1000, delta=1e-5).epsilon, 1)
    2.5
    """
    check_guesses(right=right, guesses=guesses, canaries=canaries)
    validate.delta(delta=delta)
    check_confidence(confidence=confidence)
    mu = largest_refuted_mu(right=right, guesses=guesses, canaries=canaries, confidence=confidence)
    return LowerBound(
        epsilon=epsilon_from_mu(mu, delta=delta),
        delta=delta,
        confidence=confidence,
        by="one run, trade-off",
        assumes=(GAUSSIAN_TRADEOFF,),
    )


def largest_refuted_mu(*, right: int, guesses: int, canaries: int, confidence: float) -> float:
    """The largest μ that is refuted, to about eight digits; 0 where none is."""

    def is_refuted(mus: Floats) -> NDArray[np.bool_]:
        return refuted_mus(mus, right=right, guesses=guesses, canaries=canaries, confidence=confidence)

    low, high = 0.0, 1.0
    while is_refuted(np.array([high]))[0]:
        low, high = high, 2 * high
    for _ in range(_ROUNDS):
        grid = np.linspace(low, high, _AT_ONCE + 1)
        # The first of the grid is refuted already, or is 0 and certifies nothing; the last is not refuted.
        first_not = 1 + int(np.argmin(np.append(is_refuted(grid[1:-1]), False)))
        low, high = float(grid[first_not - 1]), float(grid[first_not])
    return low


def refuted_mus(mus: Floats, *, right: int, guesses: int, canaries: int, confidence: float) -> NDArray[np.bool_]:
    """Whether a μ-Gaussian training has ``right`` or more right guesses with probability below 1 − ``confidence``."""
    certain = guesses / canaries * _MORE_THAN_CERTAIN
    # What the counts from here up contribute to the expected right, and wrong, guesses for each canary, at the least.
    least_right = np.full(len(mus), (1 - confidence) * right / canaries)
    least_wrong = np.full(len(mus), (1 - confidence) * (guesses - right) / canaries)
    for count in range(right - 1, -1, -1):
        allowed = special.ndtr(special.ndtri(np.minimum(least_right, 1)) - mus)
        more_wrong = np.maximum(allowed - least_wrong, 0)
        if not ((more_wrong > 0) & (least_right + least_wrong <= certain)).any():
            break  # nothing changes from here on, or nothing that matters
        least_wrong += more_wrong
        least_right += more_wrong * count / (guesses - count)
    return np.asarray(least_right + least_wrong > certain)
