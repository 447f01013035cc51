"""ε from scores that are Gaussian with a known standard deviation, as those of an adversary who sees the noise are.

The difference of the means in units of the standard deviation is the μ of a Gaussian trade-off, and its one-sided
interval is exact at every number of scores. Whether the scores are what they are taken for can be tested with
``variance_p_value`` and ``mean_p_value``. The proof is in ``known_variance.proof.md``.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from lehr import validate
from lehr.auditing.gaussian_tradeoff import epsilon_from_mu
from lehr.auditing.lower_bound import LowerBound, a_confidence
from lehr.auditing.scores import Floats, Scores
from lehr.errors import InvalidValue

ASSUMES = ("the scores of either side are independent and Gaussian", "their standard deviation is the stated one")


def lower_bound(scores: Scores, *, std: float, delta: float, confidence: float = 0.95) -> LowerBound:
    """ε at ``delta`` of the smallest distance between the two means that the scores allow.

    >>> apart = Scores(members=np.full(1000, 0.72), others=np.zeros(1000))
    >>> round(lower_bound(apart, std=1.0, delta=1e-5).epsilon, 2)
    2.66
    """
    validate.delta(delta=delta)
    mu = mu_at_least(scores, std=std, confidence=confidence)
    return LowerBound(
        epsilon=epsilon_from_mu(mu, delta=delta),
        delta=delta,
        confidence=confidence,
        by="known variance",
        assumes=ASSUMES,
    )


def mu_at_least(scores: Scores, *, std: float, confidence: float) -> float:
    """The lower end of the one-sided interval of (mean of members − mean of others) / std; any sign."""
    validate.positive(std=std)
    a_confidence(confidence=confidence)
    members, others = _finite(members=scores.members) / std, _finite(others=scores.others) / std
    spread = math.sqrt(1 / len(members) + 1 / len(others))
    return float(members.mean() - others.mean() + special.ndtri(1 - confidence) * spread)


def variance_p_value(values: Floats, *, std: float) -> float:
    """The two-sided χ² test of Gaussian values whose mean is not known: small where ``std`` is not theirs.

    >>> wide = np.linspace(-2, 2, 100)
    >>> variance_p_value(wide, std=2.0) < 1e-6 < 0.01 < variance_p_value(wide, std=1.2)
    True
    """
    validate.positive(std=std)
    if not len(_finite(values=values)) > 1:
        raise InvalidValue("values", allowed="two or more numbers", given=f"{len(values)}")
    statistic = float(np.square((values - values.mean()) / std).sum())
    freedom = len(values) - 1
    return float(min(1.0, 2 * min(special.chdtr(freedom, statistic), special.chdtrc(freedom, statistic))))


def mean_p_value(values: Floats, *, mean: float, std: float) -> float:
    """The two-sided test of Gaussian values with a known ``std``: small where ``mean`` is not theirs.

    >>> mean_p_value(np.zeros(100), mean=0.0, std=1.0)
    1.0
    """
    validate.positive(std=std)
    validate.finite(mean=mean)
    away = abs(float((_finite(values=values) - mean).mean())) / std * math.sqrt(len(values))
    return float(2 * special.ndtr(-away))


def _finite(**named: Floats) -> Floats:
    """A row of finite numbers: no Gaussian value is infinite."""
    ((name, values),) = named.items()
    if not (values.ndim == 1 and values.size and np.isfinite(values).all()):
        raise InvalidValue(name, allowed="a row of finite numbers", given=values)
    return values
