"""The threshold of an attack, chosen without spoiling the confidence.

A threshold that was picked because it looks best on the scores makes null scores look like an attack. Here it is fixed
beforehand (a number), or chosen on one part of the scores and used on the others (``SPLIT``), or several are tried and
each pays its share of the error probability (``Corrected``). Why each is sound is in ``thresholds.proof.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lehr import validate
from lehr.auditing.scores import Counts, Errors, Floats, Scores, errors_above
from lehr.errors import InvalidValue

# From bounds on the false positive and the false negative rate to what they certify; below zero for nothing, so that
# two thresholds which certify nothing can still be told apart.
Certifies = Callable[[Floats, Floats], Floats]

_MOST_CANDIDATES = 100


@dataclass(frozen=True)
class Split:
    """Half of either side chooses the threshold, the other half certifies."""


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """So many thresholds are tried on all scores, each at the confidence that leaves the stated one for all together.

    They are at ranks fixed by the number of scores alone: half of them at ranks of the others, half of the members.
    """

    tried: int

    def __post_init__(self) -> None:
        validate.count(tried=self.tried)


SPLIT = Split()
Threshold = float | Split | Corrected


def certified(scores: Scores, *, threshold: Threshold, confidence: float, certifies: Certifies) -> float:
    """The best value that holds with this confidence, at thresholds found in this way; below zero for nothing."""
    error_probability = 1 - confidence
    if isinstance(threshold, Split):
        choosing, certifying = halves(scores)
        best = _best_threshold(choosing, certifies=certifies, error_probability=error_probability)
        return _best(errors_above(certifying, np.array([best])), certifies, error_probability)
    if isinstance(threshold, Corrected):
        return _best(_errors_at_ranks(scores, threshold.tried), certifies, error_probability / threshold.tried)
    return _best(errors_above(scores, np.array([validate.finite(threshold=threshold)])), certifies, error_probability)


def halves(scores: Scores) -> tuple[Scores, Scores]:
    """The scores in two halves by their positions alone; where a side is odd, the second half has one more."""
    if min(len(scores.members), len(scores.others)) < 2:
        raise InvalidValue("scores", allowed="two or more on each side, to be split", given=_sizes(scores))
    first_members, second_members = _two_parts(scores.members)
    first_others, second_others = _two_parts(scores.others)
    return Scores(first_members, first_others), Scores(second_members, second_others)


def spread_ranks(length: int, *, at_most: int) -> Counts:
    """Positions in a sorted row: evenly over all of it, and closer towards either end, where few errors are made."""
    even = np.linspace(0, length - 1, at_most // 2)
    from_end = np.geomspace(1, length, at_most // 4) - 1
    return np.unique(np.concatenate([even, from_end, length - 1 - from_end]).astype(np.int64))


def _two_parts(values: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(_mixed(len(values)), kind="stable")
    middle = len(values) // 2
    return values[order[:middle]], values[order[middle:]]


def _mixed(length: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """A fixed number for every position that looks random (the mixing of SplitMix64, Steele, Lea & Flood 2014).

    Every second position would do for scores in their original order. Scores that someone has sorted would then be
    halved into two rows that are almost the same, and the second would confirm whatever the first has chosen.
    """
    state = np.arange(1, length + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def _best_threshold(scores: Scores, *, certifies: Certifies, error_probability: float) -> float:
    pooled = np.sort(np.concatenate([scores.members, scores.others]))
    candidates = pooled[spread_ranks(len(pooled), at_most=_MOST_CANDIDATES)]
    values = certifies(*errors_above(scores, candidates).upper_rates(error_probability=error_probability))
    return float(candidates[np.argmax(values)])


def _errors_at_ranks(scores: Scores, tried: int) -> Errors:
    """The errors at thresholds which are order statistics of one side, for that side by rank instead of by counting.

    Where scores are tied, fewer errors are counted than the rank says; only the rank is known beforehand.
    """
    members, others = np.sort(scores.members), np.sort(scores.others)
    positives, negatives = _tail_counts(len(others), -(-tried // 2)), _tail_counts(len(members), tried // 2)
    above, from_here = others[len(others) - 1 - positives], members[negatives]
    return Errors(
        false_positives=np.concatenate([positives, len(others) - np.searchsorted(others, from_here, side="left")]),
        false_negatives=np.concatenate([np.searchsorted(members, above, side="right"), negatives]),
        num_others=len(others),
        num_members=len(members),
    )


def _tail_counts(length: int, tried: int) -> Counts:
    """How many of a side to have in error, from half of it down towards none, in equal ratios."""
    return (np.geomspace(max(length // 2, 1), 1, tried) - 1).astype(np.int64) if tried else np.zeros(0, dtype=np.int64)


def _best(errors: Errors, certifies: Certifies, error_probability: float) -> float:
    return float(np.max(certifies(*errors.upper_rates(error_probability=error_probability))))


def _sizes(scores: Scores) -> str:
    return f"{len(scores.members)} members and {len(scores.others)} others"
