"""Curves for pictures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lehr.auditing.curves import MOST_POINTS, allowed_tradeoff, roc, tradeoff
from lehr.auditing.scores import Scores
from lehr.errors import InvalidValue
from tests.auditing.simulated import gaussian_scores, mu_of, sides

_MANY = next(gaussian_scores(mu=1.0, per_side=5000, repetitions=1, seed=0))
_SHAPES = [
    _MANY,
    sides(members=[1.0], others=[1.0]),
    sides(members=[math.inf, math.inf, -math.inf], others=[-math.inf, 0.0]),
    sides(members=[0.0] * 5, others=[1.0] * 900),
    sides(members=_MANY.members.round(), others=_MANY.others.round()),
]


@pytest.mark.parametrize("scores", _SHAPES)
def test_the_curves_go_from_corner_to_corner_and_never_back(scores: Scores) -> None:
    up, down = roc(scores), tradeoff(scores)
    assert (up.false_positive_rates[0], up.rates[0], up.false_positive_rates[-1], up.rates[-1]) == (0, 0, 1, 1)
    assert (np.diff(up.false_positive_rates) >= 0).all()
    assert (np.diff(up.rates) >= 0).all()
    assert down.rates == pytest.approx(1 - up.rates)
    assert len(up.rates) == len(up.false_positive_rates) <= MOST_POINTS


def test_a_point_is_the_attack_at_its_threshold() -> None:
    curve = tradeoff(sides(members=[1.0, 3.0, 3.0], others=[0.0, 1.0]))
    points = list(zip(curve.false_positive_rates.tolist(), curve.rates.tolist(), strict=True))
    assert points == [(0, 1), (0, pytest.approx(1 / 3)), (0.5, 0), (1, 0)]


def test_the_curve_of_gaussian_scores_is_that_of_gaussian_noise() -> None:
    curve = tradeoff(_MANY)
    at_half = float(np.interp(0.5, curve.false_positive_rates, curve.rates))
    assert at_half == pytest.approx(0.1587, abs=0.03)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 40.0, 1e4, math.inf])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.3])
def test_what_a_claim_allows_is_a_convex_curve_between_its_corners(epsilon: float, delta: float) -> None:
    curve = allowed_tradeoff(epsilon, delta)
    assert (curve.false_positive_rates[0], curve.rates[0]) == (0, 1 - delta)
    assert (curve.false_positive_rates[-1], curve.rates[-1]) == (1, 0)
    assert (np.diff(curve.rates) <= 0).all()
    assert np.isfinite(curve.rates).all()
    slopes = np.diff(curve.rates) / np.diff(curve.false_positive_rates)
    assert (np.diff(slopes) >= -1e-9 * (1 + np.abs(slopes[1:]))).all()
    assert len(curve.rates) <= MOST_POINTS


def test_what_a_claim_allows_is_its_own_mirror_image() -> None:
    curve = allowed_tradeoff(1.0, 0.1)
    back = np.interp(curve.rates, curve.false_positive_rates, curve.rates)
    inside = curve.false_positive_rates <= 0.9
    assert back[inside] == pytest.approx(curve.false_positive_rates[inside])


def test_gaussian_noise_of_this_epsilon_stays_above_what_its_claim_allows() -> None:
    curve = allowed_tradeoff(3.0, 1e-5)
    gaussian = stats.norm.cdf(stats.norm.isf(curve.false_positive_rates) - mu_of(3.0))
    assert (gaussian >= curve.rates - 1e-9).all()
    assert float((gaussian - curve.rates)[curve.rates > 1e-4].min()) < 1e-3


@pytest.mark.parametrize("epsilon, delta, name", [(-1.0, 0, "epsilon"), (math.nan, 0, "epsilon"), (1.0, 1.0, "delta")])
def test_what_is_no_claim_is_refused(epsilon: float, delta: float, name: str) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name} must be"):
        allowed_tradeoff(epsilon, delta)
