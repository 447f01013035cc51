"""Lower bounds on ε from the scores of an attack, each with what it assumes. Proofs: ``bounds.proof.md``.

- ``clopper_pearson``: error rates at a threshold; nothing is assumed of the mechanism. An (ε, δ) mechanism allows no
  attack with FPR + e^ε·FNR < 1 − δ or FNR + e^ε·FPR < 1 − δ (Kairouz, Oh & Viswanath 2015)
- ``gaussian_tradeoff``: the mechanism has the trade-off curve of Gaussian noise, so one threshold gives the whole
  curve (Dong, Roth & Su 2022; Nasr et al. 2023)
- ``known_variance``: the scores are Gaussian with a known standard deviation; exact at every number of scores
- ``sampled_gaussian``: one step of Poisson sampling and Gaussian noise, from how often a record was drawn and how well
  it shows where it was
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import optimize, special

from lehr import validate
from lehr.accounting.closed_forms import gaussian_epsilon
from lehr.auditing.scores import Floats, Scores, errors_above, upper_rate
from lehr.auditing.thresholds import SPLIT, Threshold, certified
from lehr.errors import InvalidValue

GAUSSIAN_TRADEOFF = "the mechanism has the trade-off curve of Gaussian noise"
FLATTER_TRADEOFF = "the trade-off curve of the mechanism bends as that of its plan does"
KNOWN_VARIANCE = (
    "the scores of either side are independent and Gaussian",
    "their standard deviation is the stated one",
)
SAMPLED_GAUSSIAN = ("a record enters a sum by a coin of its own", "what is added to a sum is Gaussian noise")

_LARGEST_SQUARED_MU = 1e12
_LARGEST_MU = 1e3
_ROOT_ERROR = 4e-9
_HALVINGS = 60
_LARGEST_EPSILON = 600.0
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """ε at ``delta`` is at least ``epsilon``, except with probability 1 − ``confidence`` over the attack.

    ``by`` names the bound, ``assumes`` what it rests on, empty where that is nothing. An ``epsilon`` of 0
    certifies nothing.
    """

    epsilon: float
    delta: float
    confidence: float
    by: str
    assumes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate.non_negative(epsilon=self.epsilon)
        check_delta(delta=self.delta)
        check_confidence(confidence=self.confidence)
        validate.text(by=self.by)
        if not isinstance(self.assumes, tuple):
            raise InvalidValue("assumes", allowed="a tuple of sentences", given=self.assumes)
        for sentence in self.assumes:
            validate.text(assumes=sentence)


def check_delta(**named: object) -> float:
    """A δ in [0, 1): zero asks about pure ε."""
    value = validate.non_negative(**named)
    if not value < 1:
        (name,) = named
        raise InvalidValue(name, allowed="a number in [0, 1)", given=value)
    return value


check_confidence = validate.delta  # a number strictly between zero and one


def clopper_pearson(
    scores: Scores, *, delta: float, confidence: float = 0.95, threshold: Threshold = SPLIT
) -> LowerBound:
    """ε at ``delta`` that the attack shows. With n scores a side it is at most about log(n): more cannot be seen.

    >>> clear = Scores(members=[1.0] * 1000, others=[0.0] * 1000)
    >>> round(clopper_pearson(clear, delta=1e-5, threshold=0.5).epsilon, 2)
    5.6
    """
    check_delta(delta=delta)
    check_confidence(confidence=confidence)
    certifies = partial(epsilon_from_rates, delta=delta)
    epsilon = certified(scores, threshold=threshold, confidence=confidence, certifies=certifies)
    return LowerBound(epsilon=max(0.0, epsilon), delta=delta, confidence=confidence, by="Clopper-Pearson")


def epsilon_from_rates(false_positive: Floats, false_negative: Floats, *, delta: float) -> Floats:
    """The smallest ε that allows these rates, were it not for ε ≥ 0; the rates are above zero."""
    with np.errstate(divide="ignore"):
        one_way = np.log(np.maximum(1 - delta - false_positive, 0)) - np.log(false_negative)
        other_way = np.log(np.maximum(1 - delta - false_negative, 0)) - np.log(false_positive)
    return np.asarray(np.maximum(one_way, other_way))


def gaussian_tradeoff(
    scores: Scores, *, delta: float, confidence: float = 0.95, threshold: Threshold = SPLIT, mu_share: float = 1.0
) -> LowerBound:
    """ε at ``delta`` of the smallest μ that allows the error rates; δ is above zero, where ε of a Gaussian is finite.

    Of a mechanism whose curve is known to be flatter at ``delta`` than where errors are counted, ``mu_share`` is by how
    much: a number from 0 to 1 that is known before the scores are.

    >>> gaussian_tradeoff(Scores(members=[0.0] * 50, others=[0.0] * 50), delta=1e-5).epsilon
    0.0
    """
    validate.delta(delta=delta)
    check_confidence(confidence=confidence)
    if not validate.non_negative(mu_share=mu_share) <= 1:
        raise InvalidValue("mu_share", allowed="a number in [0, 1]", given=mu_share)
    mu = certified(scores, threshold=threshold, confidence=confidence, certifies=mu_from_rates)
    return LowerBound(
        epsilon=epsilon_from_mu(mu_share * mu if mu > 0 else 0.0, delta=delta),
        delta=delta,
        confidence=confidence,
        by="Gaussian trade-off",
        assumes=(GAUSSIAN_TRADEOFF if mu_share == 1 else FLATTER_TRADEOFF,),
    )


def mu_from_rates(false_positive: Floats, false_negative: Floats) -> Floats:
    """The smallest μ whose trade-off curve allows these rates, were it not for μ ≥ 0; minus infinity at a rate of 1."""
    return np.asarray(-special.ndtri(false_positive) - special.ndtri(false_negative))


def epsilon_from_mu(mu: float, *, delta: float) -> float:
    """ε at ``delta`` of a mechanism that is μ-Gaussian and no better; never above the truth, and 0 for μ ≤ 0."""
    if not mu > 0:
        return 0.0
    epsilon = gaussian_epsilon(min(mu * mu, _LARGEST_SQUARED_MU), delta=delta)
    # It was rounded up on purpose, by less than this.
    return max(0.0, epsilon * (1 - _ROOT_ERROR) - _ROOT_ERROR)


def mu_from_epsilon(epsilon: float, *, delta: float) -> float:
    """The μ of Gaussian noise that costs this ε at ``delta``: any of them at ε = 0, where δ explains several.

    >>> round(epsilon_from_mu(mu_from_epsilon(3.0, delta=1e-5), delta=1e-5), 6)
    3.0
    """
    validate.non_negative(epsilon=epsilon)
    if not epsilon_from_mu(_LARGEST_MU, delta=delta) > epsilon:
        return _LARGEST_MU
    return float(optimize.brentq(lambda mu: epsilon_from_mu(mu, delta=delta) - epsilon, 0.0, _LARGEST_MU))


def known_variance(scores: Scores, *, std: float, delta: float, confidence: float = 0.95) -> LowerBound:
    """ε at ``delta`` of the smallest distance between the two means that the scores allow.

    >>> apart = Scores(members=np.full(1000, 0.72), others=np.zeros(1000))
    >>> round(known_variance(apart, std=1.0, delta=1e-5).epsilon, 2)
    2.66
    """
    validate.delta(delta=delta)
    mu = mu_at_least(scores, std=std, confidence=confidence)
    return LowerBound(
        epsilon=epsilon_from_mu(mu, delta=delta),
        delta=delta,
        confidence=confidence,
        by="known variance",
        assumes=KNOWN_VARIANCE,
    )


def mu_at_least(scores: Scores, *, std: float, confidence: float) -> float:
    """The lower end of the one-sided interval of (mean of members − mean of others) / std; any sign."""
    validate.positive(std=std)
    check_confidence(confidence=confidence)
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


def sampled_gaussian(
    scores: Scores, *, threshold: float, num_drawn: int, num_draws: int, delta: float, confidence: float = 0.95
) -> LowerBound:
    """ε at ``delta`` of a step, from sums that the record is in, sums without it, and how often it was drawn.

    The members' ``scores`` are of sums that the record is in; ``threshold`` was fixed beforehand. The record was in
    ``num_drawn`` of ``num_draws``, which may have gone on until it had been drawn a given number of times. ε grows with
    either part, and half of the error probability is for either.

    >>> apart = Scores(members=np.full(500, 2.0), others=np.full(500, -2.0))
    >>> bound = sampled_gaussian(apart, threshold=0.0, num_drawn=50, num_draws=500, delta=1e-5)
    >>> round(bound.epsilon, 1)
    25.3
    """
    validate.delta(delta=delta)
    one_part = (1 - check_confidence(confidence=confidence)) / 2
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
        assumes=SAMPLED_GAUSSIAN,
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
