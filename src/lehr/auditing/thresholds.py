"""The threshold of an attack, chosen without spoiling the confidence.

A threshold that was picked because it looks best on the scores makes null scores look like an attack. Here it is fixed
beforehand (a number), or chosen on one part of the scores and used on the others (``SPLIT``), or several are tried and
each pays its share of the error probability (``Corrected``). Why each is sound is in ``thresholds.proof.md``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

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
        every = np.sort(np.concatenate([choosing.members, choosing.others]))
        candidates = every[spread_ranks(len(every), at_most=_MOST_CANDIDATES)]
        values = certifies(*errors_above(choosing, candidates).upper_rates(error_probability=error_probability))
        errors = errors_above(certifying, candidates[[np.argmax(values)]])
    elif isinstance(threshold, Corrected):
        errors = _errors_at_ranks(scores, threshold.tried)
        error_probability /= threshold.tried
    else:
        errors = errors_above(scores, np.array([validate.finite(threshold=threshold)]))
    return float(np.max(certifies(*errors.upper_rates(error_probability=error_probability))))


def halves(scores: Scores) -> tuple[Scores, Scores]:
    """The scores in two halves by their positions alone; where a side is odd, the second half has one more."""
    sides = (scores.members, scores.others)
    if min(map(len, sides)) < 2:
        given = f"{len(scores.members)} members and {len(scores.others)} others"
        raise InvalidValue("scores", allowed="two or more on each side, to be split", given=given)
    first, second = zip(*(np.split(side[_shuffled(len(side))], [len(side) // 2]) for side in sides), strict=True)
    return Scores(*first), Scores(*second)


@lru_cache(maxsize=16)
def _shuffled(length: int) -> Counts:
    """All positions in a fixed order that looks random.

    Every second position would do for scores in their original order. Scores that someone has sorted would then be
    halved into two rows that are almost the same, and the second would confirm whatever the first has chosen.
    """
    return np.array(sorted(range(length), key=lambda position: hashlib.sha256(b"%d" % position).digest()))


def spread_ranks(length: int, *, at_most: int) -> Counts:
    """Positions in a sorted row: evenly over all of it, and closer towards either end, where few errors are made."""
    even = np.linspace(0, length - 1, at_most // 2)
    from_end = np.geomspace(1, length, at_most // 4) - 1
    return np.unique(np.concatenate([even, from_end, length - 1 - from_end]).astype(np.int64))


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
    return (np.geomspace(max(length // 2, 1), 1, tried) - 1).astype(np.int64)
