from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from lehr.claims import Claim
from lehr.errors import InvalidValue
from lehr.reports import run_claims
from tests.reports.conftest import PROVEN, PUBLISHED


@pytest.mark.parametrize(
    "claim", [PROVEN, PUBLISHED, replace(PROVEN, epsilon=math.inf)], ids=["proven", "published", "infinite"]
)
def test_a_claim_reads_back_as_it_was_written(claim: Claim) -> None:
    written = json.loads(json.dumps(run_claims.to_json(claim), allow_nan=False))
    assert run_claims.from_json("proven", written) == claim


def test_a_written_epsilon_is_never_smaller_than_it_was() -> None:
    written = run_claims.to_json(replace(PROVEN, epsilon=2.123456789012))["epsilon"]
    assert isinstance(written, float)
    assert 2.123456789012 <= written < 2.1234569


@pytest.mark.parametrize(
    "change, says",
    [
        ({"kind": "proven"}, "kind must be published, by its premises"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"epsilon": "small"}, "epsilon must be"),
        ({"delta": 2.0}, "delta must be"),
        ({"adjacency": "none"}, "adjacency must be one of"),
        ({"premises": [{"statement": "x"}]}, "premise must be"),
        ({"premises": [{"statement": "x", "standing": "met", "because": 3}]}, "because must be a string"),
        ({"surplus": 1}, "unknown: surplus"),
    ],
    ids=str,
)
def test_what_is_not_a_claim_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        run_claims.from_json("published", {**run_claims.to_json(PUBLISHED), **change})


def test_a_broken_rule_is_called_no_guarantee_with_its_reason() -> None:
    assert run_claims.as_published(PUBLISHED) == "1 — not a guarantee: the choice looks at the records"
    assert run_claims.summary(PUBLISHED) == {
        "kind": "published",
        "epsilon": 1.0,
        "delta": 1e-5,
        "accountant": "rdp-mironov17",
        "theorem": "a paper's Theorem 1",
        "not_a_guarantee_because": "the choice looks at the records",
    }


def test_a_rule_that_holds_is_called_proven() -> None:
    assert run_claims.as_published(PROVEN) == "2.5 by a theorem; this rule is proven too"
    assert run_claims.because(PROVEN) == ""
    assert run_claims.summary(None) is None
