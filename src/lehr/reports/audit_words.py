"""An audit in words: its verdict, what decides, what that rests on, and the line that a certificate has of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_FLOOR, Decimal

from lehr.auditing import Audit, LowerBound, Verdict
from lehr.reports.certificate import AuditResult
from lehr.reports.rounding import at_least, at_most, exactly, rounded_down

DIGITS = 5  # of what was certified, as people read it
NO_GUARANTEE = "An attack can refute a guarantee, and cannot give one."
NOTHING_ASSUMED = "nothing beyond the game itself"


def verdict(audit: Audit) -> str:
    """The verdict in a few words, for a column.

    >>> from lehr.auditing.audit import LowerBound
    >>> shown = LowerBound(epsilon=3.2, delta=1e-5, confidence=0.95, by="Clopper-Pearson")
    >>> verdict(Audit(subject="dpsgd", game="every step", claimed_epsilon=3.0, delta=1e-5, bounds=(shown,), members=9,
    ...     others=9, runs=1, steps=4, roc=(), played_on="2026-01-31", library_version="0.1.0"))
    'REFUTED'
    """
    match audit.verdict:
        case Verdict.REFUTED:
            return "REFUTED"
        case Verdict.SUSPICIOUS:
            return "SUSPICIOUS"
        case Verdict.NOT_REFUTED:
            return "not refuted"


def claimed(audit: Audit) -> str:
    """What is attacked, rounded up."""
    return f"ε = {at_most(audit.claimed_epsilon)} at δ = {exactly(audit.delta)}"


def certified(audit: Audit) -> str:
    """What the attack shows, rounded down."""
    shown = audit.decisive
    return f"ε ≥ {at_least(shown.epsilon)} with {percent(shown.confidence)} confidence"


def sentences(audit: Audit) -> Iterator[str]:
    """The verdict for somebody who reads no more than that: what it says, and what it does not say."""
    shown = audit.decisive
    found = f"with {percent(shown.confidence)} confidence, the true ε is at least {at_least(shown.epsilon)}"
    claim = claimed(audit)
    if audit.verdict is Verdict.REFUTED:
        yield f"REFUTED. The attack shows more than can be: {found}, and {claim} is claimed."
        yield "Something does not do what the proof is about. Do not rely on the claim."
        return
    if audit.verdict is Verdict.SUSPICIOUS:
        broken = "; ".join(audit.objections)
        yield f"SUSPICIOUS. The claim of {claim} is not refuted, but this does not hold: {broken}."
        yield "Something does not do what it says it does. Do not rely on the claim before you know why."
    elif shown.epsilon > 0:
        yield f"Not refuted. The claim is {claim}; {found}: {share(audit)} of the claim."
    else:
        yield f"Not refuted, and nothing is shown: the claim is {claim}, and the attack certifies no ε above 0."
    yield NO_GUARANTEE


def share(audit: Audit) -> str:
    """How much of the claim was certified, rounded down: close to all of it, the claim cannot be much smaller.

    >>> share(Audit(subject="x", game="y", claimed_epsilon=3.0, delta=1e-5, bounds=(LowerBound(epsilon=2.69,
    ...     delta=1e-5, confidence=0.95, by="z"),), members=9, others=9, runs=1, steps=4, roc=(),
    ...     played_on="2026-01-31", library_version="0.1.0"))
    '89 %'
    """
    if not 0 < audit.claimed_epsilon < math.inf:
        return "–"
    return f"{math.floor(100 * audit.decisive.epsilon / audit.claimed_epsilon)} %"


def played(audit: Audit) -> str:
    """How it was played, in numbers."""
    kind = "records" if audit.is_private else "canaries"
    there = f"{audit.members:,} {kind} that were there and {audit.others:,} that were not"
    return f"{there}{_in_runs(audit)}, on {audit.played_on}"


def _in_runs(audit: Audit) -> str:
    """Nothing where no step of any run was seen."""
    runs = "one run" if audit.runs == 1 else f"{audit.runs} runs"
    return f", in {runs} of {audit.steps:,} steps" if audit.steps else ""


def assumes(bound: LowerBound) -> str:
    """What a bound rests on."""
    return "; ".join(bound.assumes) or NOTHING_ASSUMED


def for_certificate(audit: Audit) -> AuditResult | None:
    """What a certificate says of an audit, or None where a certificate must not have it: see ``kept_out_because``."""
    if kept_out_because(audit) is not None:
        return None
    shown = audit.decisive
    return AuditResult(
        method=f"{audit.game}; {audit.members + audit.others:,} canaries{_in_runs(audit)}; "
        f"at δ = {exactly(audit.delta)}, by {shown.by}, assuming {assumes(shown)}",
        epsilon_lower_bound=rounded_down(shown.epsilon, digits=DIGITS),
        confidence=shown.confidence,
    )


def kept_out_because(audit: Audit) -> str | None:
    """Why a certificate cannot have this audit, if that is so."""
    if audit.is_private:
        return "it is about the records themselves, and is private"
    return None if audit.verdict is Verdict.NOT_REFUTED else "it does not bear the claim out"


def percent(share_of_one: float) -> str:
    """A confidence in percent, never more than it is.

    >>> percent(0.95), percent(0.999), percent(0.29)
    ('95 %', '99.9 %', '29 %')
    """
    shown = (100 * Decimal(repr(share_of_one))).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR).normalize()
    return f"{shown:f} %"
