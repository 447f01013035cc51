"""A certificate for what a plan allowed. What is not proven, not finite or does not pass its own check is refused.

>>> from lehr.accounting.events import Gaussian, PoissonSampled, Repeated
>>> run = Repeated(PoissonSampled(512 / 60_000, Gaussian(1.23)), 4698)
>>> certificate = issue(run, delta=1e-5, stated=Statements(settings_chosen_on="fixed", records=60_000))
>>> round(certificate.epsilon, 3), certificate.accountant
(2.366, 'pld')
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import lehr
from lehr import accounting
from lehr.accounting.claims import Claim
from lehr.accounting.events import Adjacency, Composed, Event
from lehr.auditing import Audit, Verdict
from lehr.auditing.audit import assumptions_text, runs_text
from lehr.certificates.certificate import AuditResult, Certificate, ExPost, PaidFor, SharedBudget, Statements
from lehr.certificates.checking import assumed_in, check, recompute, sha256_of_proof, spent_epsilon
from lehr.certificates.guarantee import DIGITS
from lehr.errors import CertificateMismatch, InvalidValue
from lehr.planning.budget import BudgetStatus
from lehr.rounding import exactly, rounded_down, rounded_up

AUDIT_DIGITS = 5  # of an audited lower bound


def issue(
    event: Event,
    *,
    delta: float,
    stated: Statements,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    charged: Event | None = None,
    settings_cost: Event | None = None,
    published_claims: Iterable[Claim] = (),
    budget: SharedBudget | None = None,
    audit: AuditResult | None = None,
) -> Certificate:
    """The certificate of a plan's event, at its largest number of steps, whatever number was taken.

    ``charged`` is what the run's ledger says was done: it must be part of the event, and its ε is shown as ex post.
    Where a ``budget`` is given, it is what the budget charged for the run, and need not be said again; the event must
    be what the budget reserved for the run.
    ``settings_cost`` is what was done to the private records to choose the settings; it is added to the event. Where
    they were chosen on private data within a ``budget`` that paid for that too, the guarantee is the budget's limit.
    """
    whole = _with(event, settings_cost)
    if charged is None and budget is not None:
        charged = budget.charged
    claim = recompute(
        whole, delta=delta, adjacency=adjacency, stated=stated, settings_cost=settings_cost, budget=budget
    )
    if not claim.is_proven or claim.proof is None:
        raise CertificateMismatch(f"only a proven claim can be certified; this one is {claim.kind}")
    if not math.isfinite(claim.epsilon):
        raise InvalidValue("epsilon", allowed="finite where it is certified", given=claim.epsilon)
    certificate = Certificate(
        issued_on=datetime.now(UTC).date().isoformat(),
        library_version=lehr.__version__,
        accounting_version=accounting.version(),
        epsilon=_stated(claim.epsilon),
        delta=claim.delta,
        adjacency=adjacency,
        event=whole,
        accountant=claim.accountant,
        theorem=claim.theorem,
        premises=claim.premises,
        proof=claim.proof,
        proof_sha256=sha256_of_proof(claim.proof),
        assumptions=assumed_in(claim),
        ex_post=None if charged is None else _ex_post(_with(charged, settings_cost), claim.delta, adjacency),
        published_claims=tuple(published_claims),
        settings_cost=settings_cost,
        budget=budget,
        audit=audit,
        stated=stated,
    )
    check(certificate)
    return certificate


def reissue(certificate: Certificate, *, audit: AuditResult | None) -> Certificate:
    """The same promise, with what an attack has shown since. One that does not hold, or no longer, is refused."""
    again = replace(
        certificate,
        audit=audit,
        issued_on=datetime.now(UTC).date().isoformat(),
        library_version=lehr.__version__,
        accounting_version=accounting.version(),
    )
    check(again)
    return again


def shared_budget(status: BudgetStatus, *, run: str) -> SharedBudget:
    """A budget as a certificate tells it: its limit, and everything that it paid for, this ``run`` included."""
    reserved = {paid.run: paid.reserved for paid in status.runs}
    if run not in reserved:
        raise InvalidValue("run", allowed=f"one of {sorted(reserved)}", given=run)
    budget = SharedBudget(
        dataset=status.dataset,
        run=run,
        epsilon=status.epsilon,
        delta=status.delta,
        adjacency=status.adjacency,
        spent_epsilon=0.0,
        mode=status.mode,
        orders=status.orders,
        reserved=reserved[run],
        paid_for=tuple(PaidFor(run=paid.run, event=paid.charged) for paid in status.runs),
    )
    return replace(budget, spent_epsilon=_stated(spent_epsilon(budget)))


def audit_result(audit: Audit) -> AuditResult | None:
    """What a certificate says of an audit, or None where a certificate must not have it: see ``kept_out_because``."""
    if why_not_certified(audit) is not None:
        return None
    shown = audit.decisive
    return AuditResult(
        method=f"{audit.attack}; {audit.members + audit.others:,} canaries{runs_text(audit)}; "
        f"at δ = {exactly(audit.delta)}, by {shown.by}, assuming {assumptions_text(shown)}",
        epsilon_lower_bound=rounded_down(shown.epsilon, digits=AUDIT_DIGITS),
        confidence=shown.confidence,
    )


def why_not_certified(audit: Audit) -> str | None:
    """Why a certificate cannot have this audit, if that is so."""
    if audit.is_private:
        return "it is about the records themselves, and is private"
    return None if audit.verdict is Verdict.NOT_REFUTED else "it does not bear the claim out"


def _with(event: Event, settings_cost: Event | None) -> Event:
    return event if settings_cost is None else Composed((event, settings_cost))


def _stated(epsilon: float) -> float:
    return rounded_up(epsilon, digits=DIGITS)


def _ex_post(done: Event, delta: float, adjacency: Adjacency) -> ExPost:
    return ExPost(event=done, epsilon=_stated(accounting.bound(done, delta=delta, adjacency=adjacency).epsilon))
