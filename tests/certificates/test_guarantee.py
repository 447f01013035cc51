"""A simulation, and a run on records that need no protection, promise nothing; every other run may."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from typing import Any

import pytest

from lehr.accounting.claims import Claim
from lehr.certificates.guarantee import (
    check_delta,
    claim_from_json,
    claim_summary,
    claim_to_json,
    largest_delta,
    published_text,
    why_no_guarantee,
    why_not_proven,
)
from lehr.errors import InvalidValue
from lehr.planning.plan import DECLARED, PRIVATE, Plan
from lehr.planning.simulation import simulate
from tests.certificates.conftest import PROVEN, PUBLISHED

PLAN = Plan(noise_multiplier=2.0, expected_batch_size=256, records=1464, steps=4, delta=1e-4)


def test_a_run_on_private_records_may_promise_something() -> None:
    assert why_no_guarantee(PLAN, declared=PRIVATE) is None


@pytest.mark.parametrize("declared", [word for word in DECLARED if word != PRIVATE])
def test_records_that_need_no_protection_are_promised_nothing(declared: str) -> None:
    assert why_no_guarantee(PLAN, declared=declared) == f"the training records were declared {declared}"


@pytest.mark.parametrize("declared", DECLARED)
def test_a_simulation_promises_nothing_and_says_its_own_epsilon(declared: str) -> None:
    cheap = simulate(PLAN, expected_batch_size=32)
    words = why_no_guarantee(cheap, declared=declared)
    assert words is not None
    assert words.startswith("it is a simulation of batches of 256")
    assert float(words.rpartition(" ")[2]) >= cheap.bound().epsilon


def test_a_delta_that_is_too_large_promises_nothing() -> None:
    assert why_no_guarantee(replace(PLAN, delta=largest_delta(PLAN.records)), declared=PRIVATE) is None
    words = why_no_guarantee(replace(PLAN, delta=0.1), declared=PRIVATE)
    assert words is not None
    assert "the largest that is certified for 1,464 records" in words


@pytest.mark.parametrize("delta, warns, refuses", [(1e-4, False, False), (1e-3, True, False), (0.01, True, True)])
def test_a_large_delta_is_warned_of_and_refused_for_a_certificate(delta: float, warns: bool, refuses: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_delta(delta, records=1464, is_certified=False)
    assert bool(caught) is warns
    if refuses:
        with pytest.raises(InvalidValue, match="delta must be at most"):
            check_delta(delta, records=1464, is_certified=True)


@pytest.mark.parametrize(
    "claim", [PROVEN, PUBLISHED, replace(PROVEN, epsilon=math.inf)], ids=["proven", "published", "infinite"]
)
def test_a_claim_reads_back_as_it_was_written(claim: Claim) -> None:
    written = json.loads(json.dumps(claim_to_json(claim), allow_nan=False))
    assert claim_from_json("proven", written) == claim


def test_a_written_epsilon_is_never_smaller_than_it_was() -> None:
    written = claim_to_json(replace(PROVEN, epsilon=2.123456789012))["epsilon"]
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
        claim_from_json("published", {**claim_to_json(PUBLISHED), **change})


def test_a_broken_rule_is_called_no_guarantee_with_its_reason() -> None:
    assert published_text(PUBLISHED) == "1 — not a guarantee: the choice looks at the records"
    assert claim_summary(PUBLISHED) == {
        "kind": "published",
        "epsilon": 1.0,
        "delta": 1e-5,
        "accountant": "rdp-mironov17",
        "theorem": "a paper's Theorem 1",
        "not_a_guarantee_because": "the choice looks at the records",
    }


def test_a_rule_that_holds_is_called_proven() -> None:
    assert published_text(PROVEN) == "2.5 by a theorem; this rule is proven too"
    assert why_not_proven(PROVEN) == ""
    assert claim_summary(None) is None
