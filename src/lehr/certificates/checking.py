"""Whether what a certificate says follows from the events that it lists. Nothing in it is believed but the events.

That the events took place cannot be seen from a file: that is the issuer's word, and so is everything under ``stated``.
The versions and the day of issue are there for the record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from functools import partial
from importlib.resources import files
from itertools import takewhile
from pathlib import PurePosixPath

import lehr
from lehr import accounting
from lehr.accounting.claims import (
    EXACT_ARITHMETIC,
    IDEAL_ARITHMETIC,
    IDEAL_RANDOMNESS,
    RECORDS_APART,
    TRUE_RECORD_COUNT,
    Claim,
    Premise,
    Standing,
)
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Event,
    NonPrivate,
    RepeatAndSelect,
    SampledWithoutReplacement,
    counted,
    is_part,
    rest,
    together,
)
from lehr.accounting.filter import RenyiFilter
from lehr.certificates.certificate import Certificate, SharedBudget, Statements, distinct_events
from lehr.certificates.guarantee import why_delta_is_too_large
from lehr.errors import CertificateMismatch, InvalidValue, LehrError
from lehr.planning.budget import FILTER, SINGLE_PLAN

PREMISES_OF_A_BUDGET = (
    Premise(
        "the limit and the orders of the budget were chosen without looking at the private records", Standing.ASSUMED
    ),
    Premise("the budget paid for everything that the settings were chosen on", Standing.ASSUMED),
    Premise("each run reserved what it did before it touched a record", Standing.ASSUMED),
)
_RESTATED = ("delta", "adjacency", "accountant", "theorem", "premises", "proof")
TOLERANCE = 1e-6  # how far above the recomputed ε a stated one may lie; below it may not lie at all


def check(certificate: Certificate) -> None:
    """Return if every number follows from the events; otherwise raise ``CertificateMismatch`` with all that do not."""
    if found := mismatches(certificate):
        raise CertificateMismatch("the certificate does not hold: " + "; ".join(found))


def mismatches(certificate: Certificate) -> tuple[str, ...]:
    """Everything about a certificate that does not follow from its events; empty where it holds."""
    parts: list[Callable[[Certificate], Iterable[str]]] = [
        _claim_follows,
        _ex_post_follows,
        _published_claims_are_set_apart,
        _choice_of_settings_is_paid,
        _everything_is_noised,
        _statements_agree,
    ]
    if (budget := certificate.budget) is not None:
        parts += [partial(part, budget=budget) for part in (_budget_follows, _run_is_paid, _reservation_is_admitted)]
    found: list[str] = []
    for part in parts:
        try:
            found += part(certificate)
        except (LehrError, ArithmeticError, ValueError) as error:
            # A stranger's numbers may be ones that no arithmetic survives.
            found.append(f"it cannot be recomputed: {error}")
    return tuple(found)


def recompute(
    event: Event,
    *,
    delta: float,
    adjacency: Adjacency,
    stated: Statements,
    settings_cost: Event | None,
    budget: SharedBudget | None,
) -> Claim:
    """The claim about an event, by the accountants or by the limit of a budget."""
    limit = budget_of_the_choice(event, stated=stated, settings_cost=settings_cost, budget=budget)
    return accounting.claim(event, delta=delta, adjacency=adjacency) if limit is None else claim_of(limit)


def assumed_in(claim: Claim) -> tuple[str, ...]:
    """What a certificate of this claim takes on trust: its assumed premises, and what no code can establish."""
    own = [premise for premise in claim.premises if premise.standing is Standing.ASSUMED]
    ideal = () if EXACT_ARITHMETIC in claim.premises else (IDEAL_ARITHMETIC, IDEAL_RANDOMNESS)
    return tuple(dict.fromkeys(premise.statement for premise in (*own, *ideal, RECORDS_APART)))


def budget_of_the_choice(
    event: Event, *, stated: Statements, settings_cost: Event | None, budget: SharedBudget | None
) -> SharedBudget | None:
    """The budget whose limit is the guarantee, because the run was chosen after a private search that it paid for.

    What accountants count holds for events that were fixed beforehand; a filter's limit holds however they were chosen.
    """
    if stated.settings_chosen_on != "private" or settings_cost is not None or _selects(event):
        return None
    if budget is None or budget.mode != FILTER or rest(budget.total, budget.charged) == NOTHING:
        return None
    return budget


def claim_of(budget: SharedBudget) -> Claim:
    """What a budget's filter guarantees for everything that it paid for, together."""
    return Claim(
        epsilon=budget.epsilon,
        delta=budget.delta,
        adjacency=budget.adjacency,
        accountant=FILTER,
        theorem=RenyiFilter.theorem,
        premises=(*PREMISES_OF_A_BUDGET, IDEAL_ARITHMETIC, IDEAL_RANDOMNESS, TRUE_RECORD_COUNT),
        proof=RenyiFilter.proof,
    )


def spent_epsilon(budget: SharedBudget) -> float:
    """The ε of everything that a budget paid for, counted as its mode says."""
    if budget.mode == SINGLE_PLAN:
        return accounting.bound(budget.total, delta=budget.delta, adjacency=budget.adjacency).epsilon
    return _filter_of(budget).epsilon_spent(budget.total)


def sha256_of_proof(proof: str) -> str:
    """The SHA-256 of a proof file, named by its path below the package ``lehr``."""
    path = PurePosixPath(proof)
    if path.is_absolute() or ".." in path.parts or not proof.endswith(".proof.md"):
        raise InvalidValue("proof", allowed="the path of a .proof.md file inside the package", given=proof)
    file = files("lehr").joinpath(*path.parts)
    if not file.is_file():
        raise InvalidValue("proof", allowed="the path of a proof file that this version of Lehr has", given=proof)
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _claim_follows(certificate: Certificate) -> Iterator[str]:
    claim = recompute(
        certificate.event,
        delta=certificate.delta,
        adjacency=certificate.adjacency,
        stated=certificate.stated,
        settings_cost=certificate.settings_cost,
        budget=certificate.budget,
    )
    yield from _epsilon_follows("epsilon", certificate.epsilon, claim.epsilon)
    expected = {name: getattr(claim, name) for name in _RESTATED} | {"assumptions": assumed_in(claim)}
    for name, value in expected.items():
        if getattr(certificate, name) != value:
            yield f"{name} is not what this version of Lehr finds for the events"
    if claim.proof is not None and certificate.proof_sha256 != sha256_of_proof(claim.proof):
        if certificate.library_version == lehr.__version__:
            yield f"the proof {claim.proof} of this version of Lehr is not the one that the certificate relied on"
        else:
            issuer = f"Lehr {certificate.library_version}"
            yield f"it was issued by {issuer} with another text of the proof {claim.proof}; check it with that version"


def _ex_post_follows(certificate: Certificate) -> Iterator[str]:
    ex_post, cost = certificate.ex_post, certificate.settings_cost
    if ex_post is None:
        return
    if not is_part(ex_post.event, of=certificate.event):
        yield f"what was done, {ex_post.event}, is not part of what the plan allowed"
    if cost is not None and not is_part(cost, of=ex_post.event):
        yield f"what was done, {ex_post.event}, leaves out the cost of choosing the settings"
    taken = accounting.bound(ex_post.event, delta=certificate.delta, adjacency=certificate.adjacency)
    yield from _epsilon_follows("the ex-post epsilon", ex_post.epsilon, taken.epsilon)


def _published_claims_are_set_apart(certificate: Certificate) -> Iterator[str]:
    for claim in certificate.published_claims:
        if claim.is_proven:
            yield f"a proven claim stands among the published ones: {claim.theorem}"


def _choice_of_settings_is_paid(certificate: Certificate) -> Iterator[str]:
    event, stated, cost = certificate.event, certificate.stated, certificate.settings_cost
    if cost is not None and stated.settings_chosen_on != "private":
        yield f"the settings were chosen on {stated.settings_chosen_on!r} and yet have a privacy cost"
    if cost is not None and not is_part(cost, of=event):
        yield f"the cost of choosing the settings, {cost}, is not part of the events"
    limit = budget_of_the_choice(event, stated=stated, settings_cost=cost, budget=certificate.budget)
    if stated.settings_chosen_on == "private" and cost is None and limit is None and not _selects(event):
        yield "the settings were chosen on private data, and neither an event nor a budget pays for that"


def _everything_is_noised(certificate: Certificate) -> Iterator[str]:
    budget = certificate.budget
    others = () if budget is None else (budget.reserved, budget.total)
    for event in distinct_events([certificate.event, *others]):
        if isinstance(event, NonPrivate):
            yield f"something was released without noise: {event.reason}"


def _statements_agree(certificate: Certificate) -> Iterator[str]:
    records, audit = certificate.stated.records, certificate.audit
    if records is None:
        yield "the number of records is not stated, without which nobody can tell whether delta is small enough"
    else:
        if (reason := why_delta_is_too_large(certificate.delta, records=records)) is not None:
            yield reason
        for event in distinct_events([certificate.event]):
            if isinstance(event, SampledWithoutReplacement) and event.records != records:
                yield f"{records} records are stated, and batches were sampled of {event.records}"
    if date.fromisoformat(certificate.issued_on) > datetime.now(UTC).date():
        yield f"it was issued on {certificate.issued_on}, which is yet to come"
    if audit is not None and not audit.epsilon_lower_bound <= certificate.epsilon:
        yield f"the audit shows epsilon {audit.epsilon_lower_bound:g}, above the {certificate.epsilon:g} claimed"


def _budget_follows(certificate: Certificate, budget: SharedBudget) -> Iterator[str]:
    if budget.adjacency is not certificate.adjacency:
        yield f"the budget counts by {budget.adjacency.value} and the claim by {certificate.adjacency.value}"
    runs = [payment.run for payment in budget.paid_for]
    if len(set(runs)) != len(runs):
        yield "the budget has paid for two runs of one name"
    paid = [payment.run for payment in budget.paid_for if together(payment.event) != NOTHING]
    if budget.mode == SINGLE_PLAN and paid != [budget.run]:
        yield f"the budget was given to a single plan, and has not paid for the run {budget.run!r} alone"
    spent = spent_epsilon(budget)
    yield from _epsilon_follows("the budget's spent epsilon", budget.spent_epsilon, spent)
    if not spent <= budget.epsilon:
        yield f"the budget of epsilon {budget.epsilon:g} is overspent: {spent:g}"


def _run_is_paid(certificate: Certificate, budget: SharedBudget) -> Iterator[str]:
    charged, cost = budget.charged, certificate.settings_cost or NOTHING
    if charged == NOTHING:
        yield f"the budget has paid for no run {budget.run!r}"
    if not is_part(cost, of=rest(budget.total, charged)):
        yield f"the budget has not paid for choosing the settings, {cost}"
    if certificate.ex_post is None:
        yield f"the budget charged {charged} for the run, and the certificate does not say what that cost ex post"
        return
    done = rest(certificate.ex_post.event, cost)
    if not is_part(done, of=charged):
        yield f"the budget has not paid for {done} but for {charged}"
    elif budget.mode != SINGLE_PLAN and counted(done) != counted(charged):
        # A single plan is charged in full whatever was done; a filter charges what was done once the run is settled.
        yield (
            f"the budget charged {charged} for the run, and the certificate says that {done} was done; "
            "until a run is settled it is charged in full"
        )


def _reservation_is_admitted(certificate: Certificate, budget: SharedBudget) -> Iterator[str]:
    """The event is what the budget reserved, and its filter admits that.

    Where ε is the budget's limit, nothing else ties it to the event. What a run gave back may have been reserved by a
    later one: what was charged to the runs before it, and its whole reservation, were admitted together.
    """
    own = rest(certificate.event, certificate.settings_cost or NOTHING)
    if counted(own) != counted(budget.reserved):
        yield f"the budget reserved {budget.reserved} for the run, and the certificate is for {own}"
    if budget.mode == FILTER:
        before = takewhile(lambda payment: payment.run != budget.run, budget.paid_for)
        reached = _filter_of(budget).epsilon_spent(together(*(payment.event for payment in before), budget.reserved))
        if not reached <= budget.epsilon:
            yield f"the filter of the budget of epsilon {budget.epsilon:g} does not admit the reservation: {reached:g}"


def _filter_of(budget: SharedBudget) -> RenyiFilter:
    return RenyiFilter(epsilon=budget.epsilon, delta=budget.delta, adjacency=budget.adjacency, orders=budget.orders)


def _epsilon_follows(name: str, stated: float, recomputed: float) -> Iterator[str]:
    if not recomputed <= stated <= recomputed * (1 + TOLERANCE):
        yield f"{name} is stated as {stated!r} and recomputed as {recomputed!r}"


def _selects(event: Event) -> bool:
    """Whether all of it is a selection. One beside other events chose nothing about those."""
    atoms = counted(event)
    return bool(atoms) and all(isinstance(atom, RepeatAndSelect) for atom in atoms)
