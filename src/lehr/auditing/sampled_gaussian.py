"""ε of a step that draws a record by a coin and adds Gaussian noise, from both parts: how often, and how clearly.

Error rates of a whole step see nothing of its far tail where records are seldom drawn. How often a record was drawn,
and how far a sum that it is in can be told from one without it, can be counted each by itself, and together they are
the whole curve. The proof is in ``sampled_gaussian.proof.md``.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from lehr import validate
from lehr.auditing.gaussian_tradeoff import mu_from_rates
from lehr.auditing.lower_bound import LowerBound, a_confidence
from lehr.auditing.rates import errors_above, upper_rate
from lehr.auditing.scores import Scores
from lehr.errors import InvalidValue

ASSUMES = ("a record enters a sum by a coin of its own", "what is added to a sum is Gaussian noise")

_HALVINGS = 60
_LARGEST_EPSILON = 600.0
_ROUNDING = 1e-9


def lower_bound(
    scores: Scores, *, threshold: float, num_drawn: int, num_draws: int, delta: float, confidence: float = 0.95
) -> LowerBound:
    """ε at ``delta`` of a step, from sums that the record is in, sums without it, and how often it was drawn.

    The members' ``scores`` are of sums that the record is in; ``threshold`` was fixed beforehand. The record was in
    ``num_drawn`` of ``num_draws``, which may have gone on until it had been drawn a given number of times. ε grows with
    either part, and half of the error probability is for either.

    >>> apart = Scores(members=np.full(500, 2.0), others=np.full(500, -2.0))
    >>> bound = lower_bound(apart, threshold=0.0, num_drawn=50, num_draws=500, delta=1e-5)
    >>> round(bound.epsilon, 1)
    25.3
    """
    validate.delta(delta=delta)
    one_part = (1 - a_confidence(confidence=confidence)) / 2
    errors = errors_above(scores, np.array([validate.finite(threshold=threshold)]))
    mu = float(mu_from_rates(*errors.upper_rates(error_probability=one_part))[0])
    num_missed = validate.count(num_draws=num_draws) - validate.count(minimum=0, num_drawn=num_drawn)
    if num_missed < 0:
        raise InvalidValue("num_drawn", allowed=f"at most the {num_draws} draws", given=num_drawn)
    probability = 1 - float(upper_rate(num_missed, of=num_draws, error_probability=one_part))
    return LowerBound(
        epsilon=epsilon_from_parts(probability, mu, delta=delta),
        delta=delta,
        confidence=confidence,
        by="sampled Gaussian",
        assumes=ASSUMES,
    )


def epsilon_from_parts(probability: float, mu: float, *, delta: float) -> float:
    """ε at ``delta`` of noise around 0 or, with this probability, around ``mu``, against noise around 0; rounded down.

    >>> epsilon_from_parts(0.5, 0.0, delta=1e-5)
    0.0
    """
    more_than_delta = delta * (1 + _ROUNDING)
    if not (mu > 0 and probability > 0 and _delta(0.0, probability, mu) > more_than_delta):
        return 0.0
    low, high = 0.0, _LARGEST_EPSILON
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(middle, probability, mu) > more_than_delta else (low, middle)
    return max(0.0, low * (1 - _ROUNDING) - _ROUNDING)


def _delta(epsilon: float, probability: float, mu: float) -> float:
    """δ at ε: what lies where the ratio of the densities is above e^ε, less what e^ε covers of it."""
    beyond = (math.log((math.expm1(epsilon) + probability) / probability) + mu**2 / 2) / mu
    covered = math.exp(epsilon + float(special.log_ndtr(-beyond)))
    return float((1 - probability) * special.ndtr(-beyond) + probability * special.ndtr(mu - beyond) - covered)
