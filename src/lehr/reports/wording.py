"""A certificate as a page of plain text. Its headings are the questions that NIST SP 800-226 tells a reader to ask."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

from lehr.claims import Standing
from lehr.events import Adjacency, RepeatAndSelect, counted, rest
from lehr.planning.budget import FILTER
from lehr.planning.search_cost import composition_in_words, selection_in_words
from lehr.reports.certificate import Certificate, PaidFor, StatedClaim
from lehr.reports.promising import delta_caution
from lehr.reports.rounding import at_most, at_most_times, exactly, rounded_up

WIDTH = 80

ADJACENCY_IN_WORDS = {
    Adjacency.ADD_OR_REMOVE_ONE: "whether it is in the data or not",
    Adjacency.REPLACE_ONE: "whether it is in the data as it is or replaced by another",
}
SETTINGS_IN_WORDS = {
    "fixed": "They were fixed before any data was seen.",
    "public": "They were chosen on public data.",
    "private": "They were chosen on the private data, and the guarantee above includes what that cost.",
}


def page(certificate: Certificate, *, mismatches: Sequence[str] = ()) -> str:
    """The whole page, in lines of at most 80 characters where words allow it.

    ``mismatches`` are what ``checking`` found; a certificate that has some is headed by them.
    """
    heading = "PRIVACY CERTIFICATE"
    if mismatches:
        heading = f"THIS PRIVACY CERTIFICATE DOES NOT HOLD\n{_body(mismatches)}\n\nWhat it says must not be believed:"
    sections = (f"{question}\n{_body(answer(certificate))}" for question, answer in _QUESTIONS.items())
    return "\n\n".join((heading, *sections)) + "\n"


def guarantee(*, epsilon: float, delta: float, adjacency: Adjacency, unit: str = "one record") -> str:
    """One (ε, δ) in words, for people who have never met it.

    >>> print(guarantee(epsilon=3.0, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE))
    ε = 3 at δ = 1e-05. Whatever is concluded from what was released is at most 20.1 times as likely because of \
one record (whether it is in the data or not), except with a probability of about 1e-05.
    """
    return (
        f"ε = {at_most(epsilon)} at δ = {exactly(delta)}. Whatever is concluded from what was released is at most "
        f"{at_most_times(epsilon)} times as likely because of {unit} ({ADJACENCY_IN_WORDS[adjacency]}), "
        f"except with a probability of about {exactly(delta)}."
    )


def best_guess(*, epsilon: float, delta: float, adjacency: Adjacency, unit: str = "one record") -> str:
    """The same (ε, δ) as a bet: how often the best of guessers is right (Wasserman & Zhou 2010; Kairouz et al. 2015).

    >>> print(best_guess(epsilon=1.0, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE))
    Whoever has to guess about one record whether it is in the data or not, where both are as likely, is right in at \
most 73.11 % of all cases, whatever else they know; without the model it would be 50 %.
    """
    odds = math.exp(-epsilon)
    # Both errors are at least (1 - δ) / (1 + e^ε); by e^-ε, for a large ε would overflow.
    right = 1 - (1 - delta) * odds / (1 + odds)
    return (
        f"Whoever has to guess about {unit} {ADJACENCY_IN_WORDS[adjacency]}, where both are as likely, is right in at "
        f"most {min(100.0, rounded_up(100 * right, digits=4)):.4g} % of all cases, whatever else they know; without "
        "the model it would be 50 %."
    )


def _who_is_protected(certificate: Certificate) -> Iterable[str]:
    stated = certificate.stated
    yield f"The unit of privacy is {stated.unit_of_privacy}; data sets are neighbours by {certificate.adjacency.value}."
    if stated.records_per_person is None:
        yield "How many records one person may have is not stated. If it is more than one, a person is protected less."
    elif stated.records_per_person > 1:
        yield f"One person may have {stated.records_per_person} records, and is protected less than one record is."
    else:
        yield "Each person has at most one record."


def _how_well(certificate: Certificate) -> Iterable[str]:
    yield guarantee(
        epsilon=certificate.epsilon,
        delta=certificate.delta,
        adjacency=certificate.adjacency,
        unit=certificate.stated.unit_of_privacy,
    )
    records = certificate.stated.records
    if records is not None and (caution := delta_caution(certificate.delta, records=records)) is not None:
        yield f"Caution: {caution}."
    if certificate.claim.claim.accountant == FILTER:
        yield "This is the limit of the budget below, for everything that it paid for together, however it was chosen."
    else:
        yield "This is for the largest number of steps that the plan allowed, however many were taken."
    if certificate.ex_post is not None:
        yield (
            f"Ex post, and not a guarantee: what was charged in the end ({certificate.ex_post.event}) would have cost "
            f"ε = {at_most(certificate.ex_post.epsilon)} had it been the plan."
        )


def _why(certificate: Certificate) -> Iterable[str]:
    claim = certificate.claim.claim
    yield f"What was done to the records: {certificate.event}."
    yield f"Theorem: {claim.theorem}."
    yield f"Proof: {claim.proof}, SHA-256 {certificate.claim.proof_sha256}."
    for premise in claim.premises:
        if premise.standing is Standing.MET:
            yield f"Met by the code: {premise.statement}."
    yield f"Counted by: {claim.accountant} ({certificate.accounting_version})."
    for other in certificate.passed_over:
        yield f"Not used: {other.accountant}, {other.reason}."


def _assumed(certificate: Certificate) -> Iterable[str]:
    return (f"Assumed: {statement}." for statement in certificate.assumptions)


def _trusted(certificate: Certificate) -> Iterable[str]:
    yield f"Who sees the raw data: {certificate.stated.raw_data_seen_by}."
    yield f"How the data was collected: {certificate.stated.data_collection}."


def _public(certificate: Certificate) -> Iterable[str]:
    stated = certificate.stated
    yield "Released: " + "; ".join(stated.released) + "."
    yield "Treated as public: " + ("; ".join(stated.treated_as_public) or "nothing was stated") + "."
    if stated.records is not None:
        yield f"Number of records, stated as public: {stated.records:,}."


def _settings(certificate: Certificate) -> Iterable[str]:
    yield SETTINGS_IN_WORDS[certificate.stated.settings_chosen_on]
    yield from how_chosen(certificate)


def how_chosen(certificate: Certificate) -> Iterable[str]:
    """How settings that were chosen on private data were paid for."""
    if certificate.settings_cost is not None:
        yield f"Choosing them did this to the records: {certificate.settings_cost}."
        if (trials := _equal_trials(certificate)) is not None:
            yield composition_in_words(trials)
    for atom in counted(certificate.event):
        if isinstance(atom, RepeatAndSelect):
            yield selection_in_words(atom)


def _equal_trials(certificate: Certificate) -> int | None:
    """Among how many trials of one plan the model was chosen, where its certificate says just that."""
    assert certificate.settings_cost is not None
    cost = counted(certificate.settings_cost)
    own = counted(rest(certificate.event, certificate.settings_cost))
    times = {cost.get(atom, 0) / count for atom, count in own.items()}
    if own.keys() != cost.keys() or len(times) != 1:
        return None
    [others] = times
    return int(others) + 1 if others.is_integer() else None


def _what_else(certificate: Certificate) -> Iterable[str]:
    budget = certificate.budget
    if budget is None:
        yield "No budget was kept: what else was done with the same records is not known from this certificate."
        return
    yield (
        f"The budget of {budget.dataset!r} is ε = {exactly(budget.epsilon)} at δ = {exactly(budget.delta)}; "
        f"ε = {at_most(budget.spent_epsilon)} of it is spent, counted as {budget.mode}."
    )
    yield from (_payment(payment, this_run=budget.run) for payment in budget.paid_for)


def _payment(payment: PaidFor, *, this_run: str) -> str:
    mark = " (this model)" if payment.run == this_run else ""
    return f"Paid for {payment.run!r}{mark}: {payment.event}."


def _published(certificate: Certificate) -> Iterable[str]:
    if not certificate.published_claims:
        yield "None."
    yield from map(_no_guarantee, certificate.published_claims)


def _no_guarantee(stated: StatedClaim) -> str:
    reasons = "; ".join(f"{premise.statement}: {premise.because}" for premise in stated.claim.broken)
    why = f" Does not hold here: {reasons}." if reasons else ""
    return f"NOT A GUARANTEE ({stated.kind}): ε = {at_most(stated.claim.epsilon)} by {stated.claim.theorem}.{why}"


def _tested(certificate: Certificate) -> Iterable[str]:
    audit = certificate.audit
    if audit is None:
        yield "No audit is reported."
        return
    yield (
        f"An attack ({audit.method}) shows ε of at least {exactly(audit.epsilon_lower_bound)} with confidence "
        f"{exactly(audit.confidence)}. An audit can refute a guarantee, and cannot give one."
    )


def _checkable(certificate: Certificate) -> Iterable[str]:
    yield f"Issued on {certificate.issued_on} by Lehr {certificate.library_version}."
    yield "`lehr certificate check FILE` recomputes every ε from the events, and why it follows."
    yield (
        "That the events took place, what is stated about the data, what an attack showed and which other numbers are "
        "published is the word of the issuer."
    )


_QUESTIONS: dict[str, Callable[[Certificate], Iterable[str]]] = {
    "Who is protected?": _who_is_protected,
    "How well?": _how_well,
    "Why does that follow?": _why,
    "What does it rest on?": _assumed,
    "Who must be trusted with the raw data?": _trusted,
    "What was released, and what was treated as public?": _public,
    "On which data were the settings chosen?": _settings,
    "What else was done with the same records?": _what_else,
    "Which other numbers are published, and do not hold here?": _published,
    "Was it tested?": _tested,
    "How can this be checked?": _checkable,
}


def _body(lines: Iterable[str]) -> str:
    return "\n".join(map(_wrapped, lines))


def _wrapped(line: str) -> str:
    return textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
