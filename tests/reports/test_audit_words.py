from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lehr.auditing import Audit
from lehr.reports import audit_words
from tests.audits import DECISIVE, HOLDING, NOTHING_SHOWN, PRIVATE, REFUTED, SUSPICIOUS, showing


@pytest.mark.parametrize(
    "audit, word", [(HOLDING, "not refuted"), (REFUTED, "REFUTED"), (SUSPICIOUS, "SUSPICIOUS")], ids=str
)
def test_the_verdict_is_a_word_and_the_first_of_the_sentences(audit: Audit, word: str) -> None:
    assert audit_words.verdict(audit) == word
    assert next(audit_words.sentences(audit)).startswith(word[0].upper() + word[1:])


def test_what_is_certified_is_rounded_down_and_what_is_claimed_up() -> None:
    audit = showing(2.61239, claimed_epsilon=2.999999)
    first, second = audit_words.sentences(audit)
    assert "at least 2.6123:" in first
    assert "ε = 3 at δ = 1e-05" in first
    assert "95 % confidence" in first
    assert second == audit_words.NO_GUARANTEE


@pytest.mark.parametrize("audit", [REFUTED, SUSPICIOUS])
def test_what_does_not_stand_is_not_to_be_relied_on(audit: Audit) -> None:
    assert "Do not rely on the claim" in " ".join(audit_words.sentences(audit))


def test_what_is_suspicious_is_named() -> None:
    assert "does not hold: the noise is as large as it is said to be" in next(audit_words.sentences(SUSPICIOUS))


def test_an_attack_that_shows_nothing_says_so() -> None:
    assert "nothing is shown" in next(audit_words.sentences(NOTHING_SHOWN))


@pytest.mark.parametrize("certified, share", [(2.9999, "99 %"), (3.0, "100 %"), (3.1, "103 %"), (0.0, "0 %")])
def test_the_share_of_the_claim_is_rounded_down(certified: float, share: str) -> None:
    assert audit_words.share(showing(certified)) == share


@pytest.mark.parametrize("claimed", [0.0, math.inf])
def test_there_is_no_share_of_nothing_or_of_no_claim(claimed: float) -> None:
    assert audit_words.share(showing(0.0, claimed_epsilon=claimed)) == "–"


def test_the_line_of_a_certificate_has_all_that_makes_the_number_plausible() -> None:
    result = audit_words.for_certificate(HOLDING)
    assert result is not None
    assert result.epsilon_lower_bound == 2.6123
    assert result.confidence == 0.95
    for words in (
        "every step is seen",
        "15,000 canaries",
        "2 runs of 400 steps",
        "at δ = 1e-05",
        "by Gaussian trade-off",
        "trade-off curve of Gaussian noise",
    ):
        assert words in result.method


@pytest.mark.parametrize("audit", [REFUTED, SUSPICIOUS, PRIVATE])
def test_a_certificate_has_no_audit_that_is_private_or_speaks_against_it(audit: Audit) -> None:
    assert audit_words.for_certificate(audit) is None
    assert audit_words.kept_out_because(audit)


def test_records_of_somebody_are_not_called_canaries() -> None:
    assert "canaries" not in audit_words.played(PRIVATE)
    assert "steps" not in audit_words.played(replace(PRIVATE, steps=0))


def test_a_bound_that_assumes_nothing_says_so() -> None:
    assert audit_words.assumes(replace(DECISIVE, assumes=())) == "nothing beyond the game itself"
    assert audit_words.assumes(replace(DECISIVE, assumes=("one", "two"))) == "one; two"


@pytest.mark.parametrize("confidence, shown", [(0.5, "50 %"), (0.975, "97.5 %"), (0.99999999, "99.9999 %")])
def test_a_confidence_is_never_shown_as_more_than_it_is(confidence: float, shown: str) -> None:
    assert audit_words.percent(confidence) == shown
