"""ε from the error rates of an attack at one threshold, with nothing assumed of the mechanism.

An (ε, δ) mechanism allows no attack whose rates break FPR + e^ε·FNR ≥ 1 − δ or FNR + e^ε·FPR ≥ 1 − δ (Kairouz, Oh &
Viswanath 2015); the rates are bounded from their counts (Clopper & Pearson 1934), as Jagielski, Ullman & Oprea 2020 and
Nasr et al. 2021 do. The proof is in ``clopper_pearson.proof.md``.
"""

from __future__ import annotations

import numpy as np

from lehr.auditing.lower_bound import LowerBound, a_confidence, a_delta
from lehr.auditing.scores import Floats, Scores
from lehr.auditing.thresholds import SPLIT, Threshold, certified


def lower_bound(scores: Scores, *, delta: float, confidence: float = 0.95, threshold: Threshold = SPLIT) -> LowerBound:
    """ε at ``delta`` that the attack shows. With n scores a side it is at most about log(n): more cannot be seen.

    >>> clear = Scores(members=[1.0] * 1000, others=[0.0] * 1000)
    >>> round(lower_bound(clear, delta=1e-5, threshold=0.5).epsilon, 2)
    5.6
    """
    a_delta(delta=delta)
    a_confidence(confidence=confidence)
    epsilon = certified(
        scores,
        threshold=threshold,
        confidence=confidence,
        certifies=lambda false_positive, false_negative: epsilon_from_rates(
            false_positive, false_negative, delta=delta
        ),
    )
    return LowerBound(epsilon=max(0.0, epsilon), delta=delta, confidence=confidence, by="Clopper-Pearson")


def epsilon_from_rates(false_positive: Floats, false_negative: Floats, *, delta: float) -> Floats:
    """The smallest ε that allows these rates, were it not for ε ≥ 0; the rates are above zero."""
    with np.errstate(divide="ignore"):
        one_way = np.log(np.maximum(1 - delta - false_positive, 0)) - np.log(false_negative)
        other_way = np.log(np.maximum(1 - delta - false_negative, 0)) - np.log(false_positive)
    epsilon: Floats = np.maximum(one_way, other_way)
    return epsilon
