"""Scores whose truth is known, and how often a bound may be wrong about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats

from lehr.accounting.closed_forms import gaussian_epsilon
from lehr.auditing.bounds import LowerBound
from lehr.auditing.scores import Counts, Scores

DELTA = 1e-5
CONFIDENCE = 0.95
REPETITIONS = 2000


def sides(*, members: ArrayLike, others: ArrayLike) -> Scores:
    """Scores from rows of any kind of number."""
    return Scores(members=np.asarray(members, dtype=np.float64), others=np.asarray(others, dtype=np.float64))


def mu_of(epsilon: float) -> float:
    """The μ of the Gaussian mechanism that has this ε at δ = 1e-5."""
    return float(optimize.brentq(lambda mu: gaussian_epsilon(mu * mu, delta=DELTA) - epsilon, 1e-3, 10))


def gaussian_scores(*, mu: float, per_side: int, repetitions: int, seed: int) -> Iterator[Scores]:
    """Independent attacks on noise of standard deviation 1 that a member shifts by μ."""
    rng = np.random.default_rng(seed)
    for _ in range(repetitions):
        yield Scores(members=rng.normal(mu, 1, per_side), others=rng.normal(0, 1, per_side))


def most_exceptions(repetitions: int = REPETITIONS, *, confidence: float = CONFIDENCE) -> int:
    """A bound that keeps its confidence has more exceptions than this once in a thousand tests at most."""
    return int(stats.binom.ppf(0.999, repetitions, 1 - confidence))


def exceptions(bound: Callable[[Scores], LowerBound], *, truth: float, per_side: int, repetitions: int) -> int:
    """How many attacks have a bound above the truth, where the truth is an ε of the Gaussian mechanism, or 0."""
    mu = mu_of(truth) if truth else 0.0
    attacks = gaussian_scores(mu=mu, per_side=per_side, repetitions=repetitions, seed=20)
    return sum(bound(scores).epsilon > truth for scores in attacks)


def mean_certified(bound: Callable[[Scores], LowerBound], *, truth: float, per_side: int, repetitions: int) -> float:
    """The mean bound over attacks on the Gaussian mechanism of this ε."""
    attacks = gaussian_scores(mu=mu_of(truth), per_side=per_side, repetitions=repetitions, seed=21)
    return float(np.mean([bound(scores).epsilon for scores in attacks]))


def right_guesses(*, mu: float, canaries: int, guesses: int, repetitions: int, seed: int) -> Counts:
    """How many of the surest guesses are right, over runs in which a coin puts each canary in or leaves it out.

    A canary shifts its own noise of standard deviation 1 by μ, so that a run is as private as one Gaussian mechanism.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(repetitions):
        inside = rng.random(canaries) < 0.5
        evidence = rng.normal(mu * inside, 1) - mu / 2
        surest = np.argpartition(-np.abs(evidence), guesses - 1)[:guesses]
        found.append(int(np.count_nonzero((evidence[surest] > 0) == inside[surest])))
    return np.array(found)
