"""ε from the error rates of an attack, where the mechanism is known to have the trade-off of Gaussian noise.

Every pair of rates then lies on or above the curve of some μ (Dong, Roth & Su 2022), and one good threshold gives the
whole curve, the far tail that ε at a small δ asks for included (Nasr et al. 2023). The proof is in
``gaussian_tradeoff.proof.md``.
"""

from __future__ import annotations

from scipy import optimize, special

from lehr import validate
from lehr.accounting.gaussian_mechanism import gaussian_epsilon
from lehr.auditing.lower_bound import LowerBound, a_confidence
from lehr.auditing.scores import Floats, Scores
from lehr.auditing.thresholds import SPLIT, Threshold, certified
from lehr.errors import InvalidValue

GAUSSIAN_TRADEOFF = "the mechanism has the trade-off curve of Gaussian noise"
FLATTER_TRADEOFF = "the trade-off curve of the mechanism bends as that of its plan does"

_LARGEST_SQUARED_MU = 1e12
_LARGEST_MU = 1e3
_ROOT_ERROR = 4e-9


def lower_bound(
    scores: Scores, *, delta: float, confidence: float = 0.95, threshold: Threshold = SPLIT, mu_share: float = 1.0
) -> LowerBound:
    """ε at ``delta`` of the smallest μ that allows the error rates; δ is above zero, where ε of a Gaussian is finite.

    Of a mechanism whose curve is known to be flatter at ``delta`` than where errors are counted, ``mu_share`` is by how
    much: a number from 0 to 1 that is known before the scores are.

    >>> lower_bound(Scores(members=[0.0] * 50, others=[0.0] * 50), delta=1e-5).epsilon
    0.0
    """
    validate.delta(delta=delta)
    a_confidence(confidence=confidence)
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
    mu: Floats = -special.ndtri(false_positive) - special.ndtri(false_negative)
    return mu


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
