"""Which runs have a guarantee, and a guarantee in words and as JSON."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from typing import Any

import pytest

from lehr.accounting.claims import Claim
from lehr.accounting.events import Adjacency
from lehr.certificates.guarantee import (
    best_guess_text,
    check_delta,
    claim_from_json,
    claim_summary,
    claim_to_json,
    guarantee_text,
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


def test_which_runs_have_no_guarantee() -> None:
    simulated = simulate(PLAN, expected_batch_size=32)
    assert why_no_guarantee(PLAN, declared=PRIVATE) is None
    assert why_no_guarantee(replace(PLAN, delta=largest_delta(PLAN.records)), declared=PRIVATE) is None
    assert "largest that is certified" in (why_no_guarantee(replace(PLAN, delta=0.1), declared=PRIVATE) or "")
    for declared in DECLARED:
        if declared != PRIVATE:
            assert declared in (why_no_guarantee(PLAN, declared=declared) or "")
        reason = why_no_guarantee(simulated, declared=declared) or ""
        assert "a simulation of batches of 256" in reason
        assert float(reason.rpartition(" ")[2]) >= simulated.bound().epsilon


@pytest.mark.parametrize("delta, warns, refuses", [(1e-4, False, False), (1e-3, True, False), (0.01, True, True)])
def test_a_large_delta_gives_a_warning_and_no_certificate(delta: float, warns: bool, refuses: bool) -> None:
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
    "change, name",
    [
        ({"kind": "proven"}, "kind"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": "small"}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"adjacency": "none"}, "adjacency"),
        ({"premises": [{"statement": "x"}]}, "premises"),
        ({"premises": [{"statement": "x", "standing": "met", "because": 3}]}, "because"),
        ({"surplus": 1}, "published"),
    ],
    ids=str,
)
def test_what_is_not_a_claim_is_refused(change: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as error:
        claim_from_json("published", {**claim_to_json(PUBLISHED), **change})
    assert error.value.name == name


def test_a_published_claim_is_called_no_guarantee_unless_its_rule_holds() -> None:
    assert "not a guarantee" in published_text(PUBLISHED)
    assert (claim_summary(PUBLISHED) or {})["not_a_guarantee_because"] == "the choice looks at the records"
    assert "proven" in published_text(PROVEN)
    assert why_not_proven(PROVEN) == ""
    assert claim_summary(None) is None


@pytest.mark.parametrize("epsilon, delta", [(0.0, 1e-5), (1.0, 1e-5), (3.0, 0.01), (8.0, 1e-6), (700.0, 1e-5)])
def test_the_best_guess_is_the_bound_that_both_errors_have(epsilon: float, delta: float) -> None:
    """At every ε and δ the guesser whose errors are equal is allowed exactly that by the trade-off of the claim."""
    shown = float(best_guess_text(epsilon=epsilon, delta=delta).split("at most ")[1].split(" %")[0]) / 100
    error = (1 - delta) / (1 + math.exp(epsilon))
    assert 1 - error <= shown <= min(1.0, 1 - error + 1.1e-4)


def test_a_huge_epsilon_does_not_overflow() -> None:
    assert "at most 100 % of" in best_guess_text(epsilon=5000.0, delta=1e-5)
    assert "e^1e+06 times as likely" in guarantee_text(epsilon=1e6, delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
