"""Curves for pictures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lehr.auditing import Audit, Check, LowerBound, Scores, Verdict
from lehr.auditing.audit import (
    MOST_POINTS,
    NO_GUARANTEE,
    SUSPICIOUS_BELOW,
    allowed_tradeoff,
    explanation,
    from_json,
    percent,
    roc,
    roc_points,
    setup_text,
    share_of_claim,
    tradeoff,
    verdict_text,
)
from lehr.certificates.issuing import audit_result, why_not_certified
from lehr.errors import InvalidValue
from lehr.files import strict_json
from tests.auditing.simulated import gaussian_scores, mu_of, sides
from tests.audits import HOLDING, PRIVATE, REFUTED, SUSPICIOUS, showing

BOUND = LowerBound(epsilon=2.4, delta=1e-5, confidence=0.95, by="Gaussian trade-off", assumes=("it is Gaussian",))
AUDIT = Audit(
    subject="dpsgd",
    attack="every step",
    claimed_epsilon=3.0,
    delta=1e-5,
    bounds=(BOUND, replace(BOUND, epsilon=9.0, by="another")),  # which assumes something
    members=10,
    others=12,
    runs=1,
    steps=400,
    roc=((0.0, 0.0), (0.25, 0.5), (1.0, 1.0)),
    audited_on="2026-01-31",
    library_version="0.1.0",
    checks=(Check(statement="the noise is as stated", p_value=0.5),),
)


def test_the_first_bound_decides_and_no_other() -> None:
    assert AUDIT.decisive is BOUND
    assert AUDIT.verdict is Verdict.NOT_REFUTED
    assert replace(AUDIT, bounds=AUDIT.bounds[::-1]).verdict is Verdict.REFUTED


def test_a_bound_as_large_as_the_claim_refutes_nothing() -> None:
    assert replace(AUDIT, claimed_epsilon=2.4).verdict is Verdict.NOT_REFUTED
    assert replace(AUDIT, claimed_epsilon=math.nextafter(2.4, 0)).verdict is Verdict.REFUTED


def test_a_check_that_cannot_have_failed_by_chance_is_told_but_refutes_nothing() -> None:
    failed = Check(statement="the noise is as stated", p_value=SUSPICIOUS_BELOW / 2)
    assert replace(AUDIT, checks=(failed,)).verdict is Verdict.SUSPICIOUS
    assert replace(AUDIT, checks=(failed,), claimed_epsilon=1.0).verdict is Verdict.REFUTED
    assert Check(statement="the noise is as stated", p_value=SUSPICIOUS_BELOW).passed


def test_another_bound_above_the_claim_is_told_where_it_assumes_nothing() -> None:
    alone = replace(AUDIT.bounds[1], assumes=())
    audit = replace(AUDIT, bounds=(BOUND, alone))
    assert audit.verdict is Verdict.SUSPICIOUS
    assert audit.objections == ("the bound by another, which assumes nothing, is below the claim",)
    assert replace(AUDIT, bounds=(BOUND, replace(alone, epsilon=3.0))).verdict is Verdict.NOT_REFUTED


def test_an_infinite_claim_cannot_be_refuted() -> None:
    assert replace(AUDIT, claimed_epsilon=math.inf).verdict is Verdict.NOT_REFUTED


@pytest.mark.parametrize("claimed", [3.0, math.inf])
def test_it_goes_through_json_and_back(claimed: float) -> None:
    audit = replace(AUDIT, claimed_epsilon=claimed)
    assert from_json(strict_json.loads(strict_json.dumps(audit.to_json()))) == audit


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": "refuted"},
        {"format": "lehr certificate"},
        {"format_version": 3},
        {"unknown": 1},
        {"bounds": []},
        {"bounds": [{"epsilon": 1.0}]},
        {"bounds": 3},
        {"roc": [[0.0, 2.0]]},
        {"roc": [[0.0]]},
        {"claimed_epsilon": -1.0},
        {"claimed_epsilon": "three"},
        {"checks": [{"statement": "x", "p_value": 2.0}]},
        {"audited_on": "yesterday"},
        {"members": -1},
        {"is_private": "no"},
        {"delta": 1e-6},
    ],
    ids=str,
)
def test_a_file_that_was_not_written_like_this_is_refused(change: dict[str, Any]) -> None:
    shape = json.loads(strict_json.dumps(AUDIT.to_json())) | change
    with pytest.raises(InvalidValue):
        from_json(shape)


def test_nan_never_passes() -> None:
    for change in ({"claimed_epsilon": math.nan}, {"roc": ((math.nan, 0.0),)}):
        with pytest.raises(InvalidValue):
            replace(AUDIT, **change)
    with pytest.raises(InvalidValue):
        Check(statement="x", p_value=math.nan)


def test_the_points_of_a_roc_go_from_nobody_to_everybody() -> None:
    made = np.random.default_rng(0)
    points = roc_points(Scores(made.normal(1.0, size=5000), made.normal(size=5000)))
    assert (points[0], points[-1]) == ((0.0, 0.0), (1.0, 1.0))
    assert 20 < len(points) <= 200
    assert points == tuple(sorted(points))
    replace(AUDIT, roc=points)


@pytest.mark.parametrize(
    "audit, word", [(HOLDING, "not refuted"), (REFUTED, "REFUTED"), (SUSPICIOUS, "SUSPICIOUS")], ids=str
)
def test_the_verdict_is_a_word_and_the_first_of_the_sentences(audit: Audit, word: str) -> None:
    assert verdict_text(audit) == word
    assert next(explanation(audit)).startswith(word[0].upper() + word[1:])


def test_what_is_certified_is_rounded_down_and_what_is_claimed_up() -> None:
    audit = showing(2.61239, claimed_epsilon=2.999999)
    first, second = explanation(audit)
    assert "at least 2.6123:" in first
    assert "ε = 3 at δ = 1e-05" in first
    assert "95 % confidence" in first
    assert second == NO_GUARANTEE


@pytest.mark.parametrize("audit", [REFUTED, SUSPICIOUS])
def test_what_does_not_stand_is_not_to_be_relied_on(audit: Audit) -> None:
    assert "Do not rely on the claim" in " ".join(explanation(audit))


def test_what_is_suspicious_is_named() -> None:
    assert SUSPICIOUS.checks[0].statement in next(explanation(SUSPICIOUS))


@pytest.mark.parametrize("certified, share", [(2.9999, "99 %"), (3.0, "100 %"), (3.1, "103 %"), (0.0, "0 %")])
def test_the_share_of_the_claim_is_rounded_down(certified: float, share: str) -> None:
    assert share_of_claim(showing(certified)) == share


@pytest.mark.parametrize("claimed", [0.0, math.inf])
def test_there_is_no_share_of_nothing_or_of_no_claim(claimed: float) -> None:
    assert share_of_claim(showing(0.0, claimed_epsilon=claimed)) == "–"


def test_the_line_of_a_certificate_has_all_that_makes_the_number_plausible() -> None:
    result = audit_result(HOLDING)
    assert result is not None
    assert result.epsilon_lower_bound == 2.6123
    assert result.confidence == 0.95
    for part in (
        "every step is seen",
        "15,000 canaries",
        "2 runs of 400 steps",
        "at δ = 1e-05",
        "by Gaussian trade-off",
        "trade-off curve of Gaussian noise",
    ):
        assert part in result.method


@pytest.mark.parametrize("audit", [REFUTED, SUSPICIOUS, PRIVATE])
def test_a_certificate_has_no_audit_that_is_private_or_speaks_against_it(audit: Audit) -> None:
    assert audit_result(audit) is None
    assert why_not_certified(audit)


def test_records_of_somebody_are_not_called_canaries() -> None:
    assert "canaries" not in setup_text(PRIVATE)
    assert "steps" not in setup_text(replace(PRIVATE, steps=0))


@pytest.mark.parametrize("confidence, shown", [(0.5, "50 %"), (0.975, "97.5 %"), (0.99999999, "99.9999 %")])
def test_a_confidence_is_never_shown_as_more_than_it_is(confidence: float, shown: str) -> None:
    assert percent(confidence) == shown


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
