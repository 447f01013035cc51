"""Guesses about records of one run: who was there and who was not, about the clearest of them, and how many are right.

How many guesses are made is fixed without looking at who was there, from the claim alone: as many as would certify the
most if the claim were as tight as Gaussian noise can make it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from lehr import validate
from lehr.auditing import LowerBound, one_run, one_run_tradeoff
from lehr.auditing.gaussian_tradeoff import mu_from_epsilon
from lehr.auditing.one_run import a_count_of_guesses
from lehr.auditing.scores import Floats

_LARGEST_EPSILON = 10.0  # beyond this, guesses are as good as certain
_TRIED = 24


def bounds(
    scores: Floats,
    is_present: NDArray[np.bool_],
    *,
    guesses: int,
    delta: float,
    confidence: float,
) -> tuple[LowerBound, LowerBound]:
    """What the guesses certify, by themselves and with the trade-off of Gaussian noise."""
    right = num_right(scores, is_present, guesses=guesses)
    stated = {"right": right, "guesses": guesses, "canaries": len(scores)}
    return (
        one_run.lower_bound(**stated, delta=delta, confidence=confidence),
        one_run_tradeoff.lower_bound(**stated, delta=delta, confidence=confidence),
    )


def num_right(scores: Floats, is_present: NDArray[np.bool_], *, guesses: int) -> int:
    """How many of so many guesses are right: the largest scores are guessed there, the smallest not there.

    >>> num_right(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False]), guesses=2)
    2
    """
    a_count_of_guesses(right=0, guesses=guesses, canaries=len(scores))
    # Equal scores are in the order of the records, which no coin has seen.
    order = np.argsort(scores, kind="stable")
    guessed_out, guessed_in = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int(is_present[guessed_in].sum() + (~is_present[guessed_out]).sum())


def most_telling(*, claimed_epsilon: float, canaries: int, delta: float, confidence: float) -> int:
    """The number of guesses that would certify the most if the claimed ε were tight.

    >>> most_telling(claimed_epsilon=3.0, canaries=1000, delta=1e-5, confidence=0.95) < 1000
    True
    """
    validate.count(canaries=canaries)
    mu = mu_from_epsilon(min(claimed_epsilon, _LARGEST_EPSILON), delta=delta)
    tried = np.unique(np.geomspace(min(10, canaries), canaries, _TRIED).astype(int)).tolist()

    def certified(guesses: int) -> float:
        right = int(guesses * _share_right(mu, guesses / canaries))
        found = one_run.lower_bound(right=right, guesses=guesses, canaries=canaries, delta=delta, confidence=confidence)
        return found.epsilon

    return int(max(tried, key=lambda guesses: (certified(guesses), guesses)))


def _share_right(mu: float, share_guessed: float) -> float:
    """How many of the guesses are right, where scores are Gaussian, and μ larger on average for who is there."""

    def too_many(threshold: float) -> float:
        return float(special.ndtr(mu - threshold) + special.ndtr(-threshold) - share_guessed)

    threshold = optimize.brentq(too_many, -40.0, 40.0 + mu)
    return float(special.ndtr(mu - threshold) / share_guessed)
