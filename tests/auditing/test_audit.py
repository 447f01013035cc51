from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lehr.auditing import Audit, Check, LowerBound, Scores, Verdict
from lehr.auditing.audit import SUSPICIOUS_BELOW, from_json, roc_points
from lehr.errors import InvalidValue
from lehr.files import strict_json

BOUND = LowerBound(epsilon=2.4, delta=1e-5, confidence=0.95, by="Gaussian trade-off", assumes=("it is Gaussian",))
AUDIT = Audit(
    subject="dpsgd",
    game="every step",
    claimed_epsilon=3.0,
    delta=1e-5,
    bounds=(BOUND, replace(BOUND, epsilon=9.0, by="another")),  # which assumes something
    members=10,
    others=12,
    runs=1,
    steps=400,
    roc=((0.0, 0.0), (0.25, 0.5), (1.0, 1.0)),
    played_on="2026-01-31",
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
        {"format_version": 2},
        {"unknown": 1},
        {"bounds": []},
        {"bounds": [{"epsilon": 1.0}]},
        {"bounds": 3},
        {"roc": [[0.0, 2.0]]},
        {"roc": [[0.0]]},
        {"claimed_epsilon": -1.0},
        {"claimed_epsilon": "three"},
        {"checks": [{"statement": "x", "p_value": 2.0}]},
        {"played_on": "yesterday"},
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
