"""ε from one training run with many canaries, where the training is known to have the trade-off of Gaussian noise.

The recursion of Mahloujifar, Melis & Chaudhuri 2025 goes down over the number of right guesses: if a count this high
were as likely as the stated error probability, the trade-off curve would force the counts below it to be so likely
that all together would be more likely than certain. ``one_run_tradeoff.proof.md`` derives it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lehr import validate
from lehr.auditing.gaussian_tradeoff import GAUSSIAN_TRADEOFF, epsilon_from_mu
from lehr.auditing.lower_bound import LowerBound, a_confidence
from lehr.auditing.one_run import a_count_of_guesses
from lehr.auditing.scores import Floats

Verdicts = NDArray[np.bool_]

_ROUNDS = 5
_AT_ONCE = 64
_MORE_THAN_CERTAIN = 1 + 1e-9  # rounding must not refute


def lower_bound(*, right: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95) -> LowerBound:
    """ε at ``delta`` of the largest μ that ``right`` of ``guesses`` refute, made about some of ``canaries``.

    How many guesses are made is fixed before the coins are looked at; which canaries they are about may depend on the
    run.

    >>> round(lower_bound(right=90, guesses=100, canaries=1000, delta=1e-5).epsilon, 1)
    2.5
    """
    a_count_of_guesses(right=right, guesses=guesses, canaries=canaries)
    validate.delta(delta=delta)
    a_confidence(confidence=confidence)
    mu = largest_refuted(right=right, guesses=guesses, canaries=canaries, confidence=confidence)
    return LowerBound(
        epsilon=epsilon_from_mu(mu, delta=delta),
        delta=delta,
        confidence=confidence,
        by="one run, trade-off",
        assumes=(GAUSSIAN_TRADEOFF,),
    )


def largest_refuted(*, right: int, guesses: int, canaries: int, confidence: float) -> float:
    """The largest μ found that is refuted, to about eight digits; 0 where none is."""

    def is_refuted(mus: Floats) -> Verdicts:
        return refuted(mus, right=right, guesses=guesses, canaries=canaries, confidence=confidence)

    low, high = 0.0, 1.0
    while is_refuted(np.array([high]))[0]:
        low, high = high, 2 * high
    for _ in range(_ROUNDS):
        grid = np.linspace(low, high, _AT_ONCE + 1)
        # The first of the grid is refuted already, or is 0 and certifies nothing; the last is not refuted.
        first_not = 1 + int(np.argmin(np.append(is_refuted(grid[1:-1]), False)))
        low, high = float(grid[first_not - 1]), float(grid[first_not])
    return low


def refuted(mus: Floats, *, right: int, guesses: int, canaries: int, confidence: float) -> Verdicts:
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
