"""Whether what a certificate says follows from the events that it lists. Nothing in it is believed but the events.

That the events took place cannot be seen from a file: that is the issuer's word, and so is everything under ``stated``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lehr import accounting
from lehr.accounting.filter import RenyiFilter
from lehr.claims import IDEAL_ARITHMETIC, IDEAL_RANDOMNESS, Claim, Standing
from lehr.errors import CertificateMismatch, LehrError
from lehr.events import Event, RepeatAndSelect, counted, is_part
from lehr.reports.certificate import Certificate, SharedBudget, StatedClaim
from lehr.reports.proof_file import sha256_of_proof

TOLERANCE = 1e-6  # how far above the recomputed ε a stated one may lie; below it may not lie at all


def check(certificate: Certificate) -> None:
    """Return if every number follows from the events; otherwise raise ``CertificateMismatch`` with all that do not."""
    found = mismatches(certificate)
    if found:
        raise CertificateMismatch("the certificate does not hold: " + "; ".join(found))


def mismatches(certificate: Certificate) -> tuple[str, ...]:
    """Everything about a certificate that does not follow from its events; empty where it holds."""
    parts: tuple[Callable[[Certificate], Iterable[str]], ...] = (
        _claim_is_restated,
        _claim_follows,
        _assumptions_are_named,
        _ex_post_follows,
        _published_claims_are_set_apart,
        _choice_of_settings_is_paid,
        _budget_follows,
        _audit_agrees,
    )
    return tuple(mismatch for part in parts for mismatch in _failing_by_name(part, certificate))


def assumed_in(claim: Claim) -> tuple[str, ...]:
    """What a certificate of this claim takes on trust: its assumed premises, and what no code can establish."""
    own = [premise for premise in claim.premises if premise.standing is Standing.ASSUMED]
    always = (IDEAL_ARITHMETIC, IDEAL_RANDOMNESS)
    return tuple(dict.fromkeys(premise.statement for premise in (*own, *always)))


def spent_epsilon(budget: SharedBudget) -> float:
    """The ε of everything that a budget paid for, counted as its mode says."""
    if budget.mode == "single plan":
        return accounting.bound(budget.total, delta=budget.delta, adjacency=budget.adjacency).epsilon
    limit = RenyiFilter(epsilon=budget.epsilon, delta=budget.delta, adjacency=budget.adjacency, orders=budget.orders)
    return limit.epsilon_spent(budget.total)


def _failing_by_name(part: Callable[[Certificate], Iterable[str]], certificate: Certificate) -> Iterator[str]:
    try:
        yield from part(certificate)
    except (LehrError, ArithmeticError, ValueError) as error:
        # What cannot be recomputed does not follow, and a stranger's numbers may be ones that no arithmetic survives.
        yield f"it cannot be recomputed: {error}"


def _claim_is_restated(certificate: Certificate) -> Iterator[str]:
    claim = certificate.claim.claim
    for name in ("epsilon", "delta", "adjacency"):
        if getattr(certificate, name) != getattr(claim, name):
            yield f"{name} is {getattr(certificate, name)} at the top and {getattr(claim, name)} in the claim"


def _claim_follows(certificate: Certificate) -> Iterator[str]:
    stated = certificate.claim
    recomputed = accounting.claim(certificate.event, delta=certificate.delta, adjacency=certificate.adjacency)
    yield from _epsilon_follows("epsilon", stated.claim.epsilon, recomputed.epsilon)
    for name in ("accountant", "theorem", "premises", "proof"):
        if getattr(stated.claim, name) != getattr(recomputed, name):
            yield f"the claim's {name} is not the one that this version of Lehr finds for the events"
    yield from _kind_follows(stated)
    if stated.kind != "proven":
        yield f"the claim is {stated.kind}, and only a proven one can be certified"
    if recomputed.proof is not None and stated.proof_sha256 != sha256_of_proof(recomputed.proof):
        yield f"the proof {recomputed.proof} of this version of Lehr is not the one that the certificate relied on"


def _assumptions_are_named(certificate: Certificate) -> Iterator[str]:
    for statement in assumed_in(certificate.claim.claim):
        if statement not in certificate.assumptions:
            yield f"the assumptions leave out: {statement}"


def _ex_post_follows(certificate: Certificate) -> Iterator[str]:
    ex_post = certificate.ex_post
    if ex_post is None:
        return
    if not is_part(ex_post.event, of=certificate.event):
        yield f"what was done, {ex_post.event}, is not part of what the plan allowed"
    if certificate.settings_cost is not None and not is_part(certificate.settings_cost, of=ex_post.event):
        yield f"what was done, {ex_post.event}, leaves out the cost of choosing the settings"
    taken = accounting.bound(ex_post.event, delta=certificate.delta, adjacency=certificate.adjacency)
    yield from _epsilon_follows("the ex-post epsilon", ex_post.epsilon, taken.epsilon)


def _published_claims_are_set_apart(certificate: Certificate) -> Iterator[str]:
    for published in certificate.published_claims:
        yield from _kind_follows(published)
        if published.kind == "proven" or published.claim.is_proven:
            yield f"a proven claim stands among the published ones: {published.claim.theorem}"


def _choice_of_settings_is_paid(certificate: Certificate) -> Iterator[str]:
    chosen_on, cost = certificate.stated.settings_chosen_on, certificate.settings_cost
    if cost is not None and chosen_on != "private":
        yield f"the settings were chosen on {chosen_on!r} and yet have a privacy cost"
    if cost is not None and not is_part(cost, of=certificate.event):
        yield f"the cost of choosing the settings, {cost}, is not part of the events"
    if chosen_on == "private" and cost is None and not _selects(certificate.event):
        yield "the settings were chosen on private data, and no event pays for that"


def _budget_follows(certificate: Certificate) -> Iterator[str]:
    budget = certificate.budget
    if budget is None:
        return
    if budget.adjacency is not certificate.adjacency:
        yield f"the budget counts by {budget.adjacency.value} and the claim by {certificate.adjacency.value}"
    if budget.run not in {payment.run for payment in budget.paid_for}:
        yield f"the budget has paid for no run {budget.run!r}"
    done = certificate.event if certificate.ex_post is None else certificate.ex_post.event
    if not is_part(done, of=budget.total):
        yield f"the budget has not paid for {done}"
    spent = spent_epsilon(budget)
    yield from _epsilon_follows("the budget's spent epsilon", budget.spent_epsilon, spent)
    if not spent <= budget.epsilon:
        yield f"the budget of epsilon {budget.epsilon:g} is overspent: {spent:g}"


def _audit_agrees(certificate: Certificate) -> Iterator[str]:
    audit = certificate.audit
    if audit is not None and not audit.epsilon_lower_bound <= certificate.epsilon:
        yield f"the audit shows epsilon {audit.epsilon_lower_bound:g}, above the {certificate.epsilon:g} claimed"


def _kind_follows(stated: StatedClaim) -> Iterator[str]:
    if stated.kind != stated.claim.kind:
        yield f"the claim calls itself {stated.kind}, and by its premises it is {stated.claim.kind}"


def _epsilon_follows(name: str, stated: float, recomputed: float) -> Iterator[str]:
    if not recomputed <= stated <= recomputed * (1 + TOLERANCE):
        yield f"{name} is stated as {stated!r} and recomputed as {recomputed!r}"


def _selects(event: Event) -> bool:
    return any(isinstance(atom, RepeatAndSelect) for atom in counted(event))
