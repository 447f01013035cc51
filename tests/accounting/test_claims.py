from __future__ import annotations

import dataclasses
import math

import pytest

from lehr.accounting.claims import (
    IDEAL_ARITHMETIC,
    IDEAL_RANDOMNESS,
    TRUE_RECORD_COUNT,
    Claim,
    Premise,
    Standing,
)
from lehr.accounting.events import Adjacency
from lehr.errors import InvalidValue

MET = Premise("each record's contribution has norm at most C", Standing.MET)
BROKEN = Premise("acceptance does not look at the records", Standing.BROKEN, because="it reads the private loss")
PROVEN = Claim(
    epsilon=2.366,
    delta=1e-5,
    adjacency=Adjacency.ADD_OR_REMOVE_ONE,
    accountant="pld",
    theorem="composition of privacy loss distributions",
    premises=(MET, IDEAL_ARITHMETIC, IDEAL_RANDOMNESS, TRUE_RECORD_COUNT),
    proof="accounting/pld.proof.md",
)


def test_met_and_assumed_premises_leave_a_claim_proven() -> None:
    assert PROVEN.is_proven
    assert PROVEN.kind == "proven"
    assert PROVEN.broken == ()


def test_one_broken_premise_makes_a_claim_published() -> None:
    claim = dataclasses.replace(PROVEN, premises=(MET, BROKEN, IDEAL_ARITHMETIC))
    assert not claim.is_proven
    assert claim.kind == "published"
    assert claim.broken == (BROKEN,)


@pytest.mark.parametrize("premises", [(MET,), (MET, BROKEN)])
def test_an_estimate_is_never_proven(premises: tuple[Premise, ...]) -> None:
    claim = dataclasses.replace(PROVEN, premises=premises, is_estimate=True)
    assert not claim.is_proven
    assert claim.kind == "estimate"


def test_a_proven_claim_without_a_proof_is_refused() -> None:
    with pytest.raises(InvalidValue, match="proof must be the path of a proof file"):
        dataclasses.replace(PROVEN, proof=None)


def test_a_published_claim_and_an_estimate_need_no_proof() -> None:
    assert dataclasses.replace(PROVEN, premises=(BROKEN,), proof=None).kind == "published"
    assert dataclasses.replace(PROVEN, is_estimate=True, proof=None).kind == "estimate"


@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 2.366, math.inf])
def test_epsilon_may_be_anything_from_zero_to_infinity(epsilon: float) -> None:
    assert dataclasses.replace(PROVEN, epsilon=epsilon).epsilon == epsilon


@pytest.mark.parametrize("epsilon", [-1e-300, -1.0, -math.inf, math.nan])
def test_a_negative_epsilon_and_nan_are_refused(epsilon: float) -> None:
    with pytest.raises(InvalidValue, match="epsilon must be a number >= 0 or infinity; given: "):
        dataclasses.replace(PROVEN, epsilon=epsilon)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf, True, "1e-5"])
def test_delta_lies_strictly_between_zero_and_one(delta: float) -> None:
    with pytest.raises(InvalidValue, match="delta"):
        dataclasses.replace(PROVEN, delta=delta)


def test_a_broken_premise_says_why() -> None:
    with pytest.raises(InvalidValue, match="because must be a non-empty string"):
        Premise("acceptance does not look at the records", Standing.BROKEN)


@pytest.mark.parametrize("standing", Standing)
def test_a_premise_states_something(standing: Standing) -> None:
    with pytest.raises(InvalidValue, match="statement"):
        Premise(" ", standing, because="a reason")


@pytest.mark.parametrize("premise", [IDEAL_ARITHMETIC, IDEAL_RANDOMNESS, TRUE_RECORD_COUNT])
def test_what_no_code_can_meet_is_assumed_and_never_met(premise: Premise) -> None:
    assert premise.standing is Standing.ASSUMED


def test_claims_are_frozen_and_compare_and_hash_by_value() -> None:
    twin = dataclasses.replace(PROVEN)
    assert twin == PROVEN
    assert hash(twin) == hash(PROVEN)
    assert dataclasses.replace(PROVEN, epsilon=2.367) != PROVEN
    with pytest.raises(dataclasses.FrozenInstanceError):
        PROVEN.epsilon = 0.0  # type: ignore[misc]
