"""An audit: its verdict, its JSON form, its words and its curves."""

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
    roc_points,
    setup_text,
    share_of_claim,
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
    checks=(Check(statement="the noise is as stated", p_value=SUSPICIOUS_BELOW),),
)
FAILED = (Check(statement="the noise is as stated", p_value=SUSPICIOUS_BELOW / 2),)
WITHOUT_ASSUMPTION = (BOUND, LowerBound(epsilon=9.0, delta=1e-5, confidence=0.95, by="another"))


@pytest.mark.parametrize(
    "changed, verdict",
    [
        ({}, Verdict.NOT_REFUTED),
        ({"claimed_epsilon": math.inf}, Verdict.NOT_REFUTED),
        ({"claimed_epsilon": 2.4}, Verdict.NOT_REFUTED),
        ({"claimed_epsilon": math.nextafter(2.4, 0)}, Verdict.REFUTED),
        ({"bounds": AUDIT.bounds[::-1]}, Verdict.REFUTED),  # the first one decides
        ({"checks": FAILED}, Verdict.SUSPICIOUS),
        ({"checks": FAILED, "claimed_epsilon": 1.0}, Verdict.REFUTED),
        ({"bounds": WITHOUT_ASSUMPTION}, Verdict.SUSPICIOUS),
        ({"bounds": WITHOUT_ASSUMPTION, "claimed_epsilon": 9.0}, Verdict.NOT_REFUTED),
    ],
)
def test_the_verdict_follows_from_the_first_bound_and_the_objections(changed: dict[str, Any], verdict: Verdict) -> None:
    audit = replace(AUDIT, **changed)
    assert audit.verdict is verdict
    assert bool(audit.objections) == (verdict is Verdict.SUSPICIOUS or "checks" in changed)
    assert from_json(strict_json.loads(strict_json.dumps(audit.to_json()))) == audit


@pytest.mark.parametrize(
    "changed",
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
        {"roc": [[0.0, 0.0]] * (MOST_POINTS + 1)},
        {"claimed_epsilon": -1.0},
        {"claimed_epsilon": "three"},
        {"claimed_epsilon": "nan"},
        {"checks": [{"statement": "x", "p_value": 2.0}]},
        {"audited_on": "yesterday"},
        {"members": -1},
        {"is_private": "no"},
        {"delta": 1e-6},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_a_file_that_was_not_written_like_this_is_refused(changed: dict[str, Any]) -> None:
    shape = json.loads(strict_json.dumps(AUDIT.to_json())) | changed
    with pytest.raises(InvalidValue):
        from_json(shape)


def test_nan_never_passes() -> None:
    for changed in ({"claimed_epsilon": math.nan}, {"roc": ((math.nan, 0.0),)}):
        with pytest.raises(InvalidValue):
            replace(AUDIT, **changed)
    with pytest.raises(InvalidValue):
        Check(statement="x", p_value=math.nan)


# In words


@pytest.mark.parametrize(
    "audit, word", [(HOLDING, "not refuted"), (REFUTED, "REFUTED"), (SUSPICIOUS, "SUSPICIOUS")], ids=str
)
def test_the_explanation_begins_with_the_verdict_and_warns_of_a_claim_that_fails(audit: Audit, word: str) -> None:
    assert verdict_text(audit) == word
    first, last = explanation(audit) if audit is not SUSPICIOUS else list(explanation(audit))[:2]
    assert first.lower().startswith(word.lower())
    assert ("Do not rely on the claim" in last) == (audit is not HOLDING)
    assert audit is not SUSPICIOUS or SUSPICIOUS.checks[0].statement in first


def test_certified_numbers_are_rounded_down_and_claims_up() -> None:
    first, second = explanation(showing(2.61239, claimed_epsilon=2.999999))
    assert "at least 2.6123:" in first
    assert "ε = 3 at δ = 1e-05" in first
    assert "95 % confidence" in first
    assert second == NO_GUARANTEE
    shown = [percent(confidence) for confidence in (0.5, 0.975, 0.99999999)]
    assert shown == ["50 %", "97.5 %", "99.9999 %"]
    shares = [share_of_claim(showing(certified)) for certified in (2.9999, 3.0, 3.1, 0.0)]
    assert shares == ["99 %", "100 %", "103 %", "0 %"]
    assert {share_of_claim(showing(0.0, claimed_epsilon=claimed)) for claimed in (0.0, math.inf)} == {"–"}


def test_the_line_of_a_certificate_has_all_that_makes_the_number_plausible() -> None:
    result = audit_result(HOLDING)
    assert result is not None
    assert (result.epsilon_lower_bound, result.confidence) == (2.6123, 0.95)
    for part in ("15,000 canaries", "2 runs of 400 steps", "at δ = 1e-05", "by Gaussian trade-off"):
        assert part in result.method


@pytest.mark.parametrize("audit", [REFUTED, SUSPICIOUS, PRIVATE])
def test_a_certificate_has_no_audit_that_is_private_or_speaks_against_it(audit: Audit) -> None:
    assert audit_result(audit) is None
    assert why_not_certified(audit)


def test_private_records_are_not_called_canaries() -> None:
    assert "canaries" not in setup_text(PRIVATE)
    assert "steps" not in setup_text(replace(PRIVATE, steps=0))


# Curves

MANY = next(gaussian_scores(mu=1.0, per_side=5000, repetitions=1, seed=0))


@pytest.mark.parametrize(
    "scores",
    [
        MANY,
        sides(members=[1.0], others=[1.0]),
        sides(members=[math.inf, math.inf, -math.inf], others=[-math.inf, 0.0]),
        sides(members=[0.0] * 5, others=[1.0] * 900),
        Scores(MANY.members.round(), MANY.others.round()),
    ],
)
def test_the_roc_goes_from_corner_to_corner_and_never_back(scores: Scores) -> None:
    points = roc_points(scores)
    assert (points[0], points[-1]) == ((0.0, 0.0), (1.0, 1.0))
    assert (np.diff(points, axis=0) >= 0).all()
    replace(AUDIT, roc=points)


def test_a_point_of_the_roc_is_the_attack_at_its_threshold() -> None:
    points = roc_points(sides(members=[1.0, 3.0, 3.0], others=[0.0, 1.0]))
    assert np.array(points) == pytest.approx(np.array([(0, 0), (0, 2 / 3), (0.5, 1), (1, 1)]))
    at_half = float(np.interp(0.5, *np.array(roc_points(MANY)).T))
    assert at_half == pytest.approx(stats.norm.cdf(1.0), abs=0.03)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 40.0, 1e4, math.inf])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.3])
def test_a_claim_allows_a_convex_curve_between_its_corners(epsilon: float, delta: float) -> None:
    positives, negatives = allowed_tradeoff(epsilon, delta)
    assert (positives[0], negatives[0]) == (0, 1 - delta)
    assert (positives[-1], negatives[-1]) == (1, 0)
    slopes = np.diff(negatives) / np.diff(positives)
    assert (slopes <= 0).all()
    assert (np.diff(slopes) >= -1e-9 * (1 + np.abs(slopes[1:]))).all()
    assert len(positives) <= MOST_POINTS


def test_the_curve_of_a_claim_is_symmetric_and_touches_that_of_gaussian_noise_from_below() -> None:
    positives, negatives = allowed_tradeoff(1.0, 0.1)
    back = np.interp(negatives, positives, negatives)
    assert back[positives <= 0.9] == pytest.approx(positives[positives <= 0.9])
    positives, negatives = allowed_tradeoff(3.0, 1e-5)
    above = stats.norm.cdf(stats.norm.isf(positives) - mu_of(3.0)) - negatives
    assert (above >= -1e-9).all()
    assert float(above[negatives > 1e-4].min()) < 1e-3


@pytest.mark.parametrize("epsilon, delta, name", [(-1.0, 0, "epsilon"), (math.nan, 0, "epsilon"), (1.0, 1.0, "delta")])
def test_a_claim_that_makes_no_sense_is_refused(epsilon: float, delta: float, name: str) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name}"):
        allowed_tradeoff(epsilon, delta)
