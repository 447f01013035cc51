"""What an attack shows at every threshold at once, for pictures: its ROC, its trade-off curve, and what a claim allows.

The curves are counts as they are, without a confidence; what they certify is for the bounds to say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lehr import validate
from lehr.auditing.lower_bound import a_delta
from lehr.auditing.rates import errors_above
from lehr.auditing.scores import Floats, Scores
from lehr.auditing.thresholds import spread_ranks

MOST_POINTS = 200

_SMALLEST_RATE = 1e-6
_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """Points from left to right: a false positive rate, and the true positive or false negative rate there."""

    false_positive_rates: Floats
    rates: Floats


def roc(scores: Scores) -> Curve:
    """True positive rates over false positive rates, from (0, 0) to (1, 1), at most 200 points.

    >>> curve = roc(Scores(members=np.array([1.0, 3.0]), others=np.array([0.0, 2.0])))
    >>> list(zip(curve.false_positive_rates.tolist(), curve.rates.tolist()))
    [(0.0, 0.0), (0.0, 0.5), (0.5, 0.5), (0.5, 1.0), (1.0, 1.0)]
    """
    missed = tradeoff(scores)
    return Curve(false_positive_rates=missed.false_positive_rates, rates=1 - missed.rates)


def tradeoff(scores: Scores) -> Curve:
    """False negative rates over false positive rates, from (0, 1) to (1, 0), at most 200 points."""
    errors = errors_above(scores, _thresholds(scores))
    return Curve(
        # Even the smallest score is not above itself: the attack that calls everything a member comes last.
        false_positive_rates=np.append(errors.false_positives / errors.num_others, 1.0),
        rates=np.append(errors.false_negatives / errors.num_members, 0.0),
    )


def allowed_tradeoff(epsilon: float, delta: float) -> Curve:
    """The smallest false negative rates that (ε, δ) allows (Kairouz, Oh & Viswanath 2015); ε may be infinite.

    >>> curve = allowed_tradeoff(0.0, 0.0)
    >>> bool(np.allclose(curve.rates, 1 - curve.false_positive_rates))
    True
    """
    a_delta(delta=delta)
    if epsilon != math.inf:
        validate.non_negative(epsilon=epsilon)
    factor = math.exp(min(epsilon, _LARGEST_EXPONENT))
    corners = np.array([0, (1 - delta) / (1 + factor), 1 - delta, 1])
    even, towards_zero = np.linspace(0, 1, MOST_POINTS // 2), np.geomspace(_SMALLEST_RATE, 1, MOST_POINTS // 2 - 4)
    positives = np.unique(np.concatenate([corners, even, towards_zero]))
    rates = np.maximum(1 - delta - factor * positives, (1 - delta - positives) / factor)
    return Curve(false_positive_rates=positives, rates=np.maximum(rates, 0.0))


def _thresholds(scores: Scores) -> Floats:
    """Some of the scores from the largest, above which is none, to the smallest."""
    every = np.unique(np.concatenate([scores.members, scores.others]))
    return every[spread_ranks(len(every), at_most=MOST_POINTS - 1)][::-1]
