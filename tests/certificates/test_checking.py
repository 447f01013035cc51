"""Every forged certificate is found, and every honest one passes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files

import pytest

from lehr.accounting.claims import IDEAL_RANDOMNESS, Claim, Premise, Standing
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)
from lehr.accounting.filter import RenyiFilter
from lehr.certificates.certificate import (
    AuditResult,
    Certificate,
    ExPost,
    PaidFor,
    SharedBudget,
    StatedClaim,
    Statements,
    certificate_text,
)
from lehr.certificates.checking import assumed_in, check, mismatches, sha256_of_proof, spent_epsilon
from lehr.certificates.issuing import issue
from lehr.errors import CertificateMismatch, InvalidValue
from lehr.planning.budget import FILTER, SINGLE_PLAN

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
RUN = Repeated(STEP, 2000)
ADD = Adjacency.ADD_OR_REMOVE_ONE
PAID_FOR: dict[str, Event] = {"first": Repeated(STEP, 500), "other": Repeated(STEP, 300)}
Change = Callable[[Certificate], Certificate]


def _budget(*, mode: str = FILTER, epsilon: float = 3.0, run: str = "first", **paid_for: Event) -> SharedBudget:
    budget = SharedBudget(
        dataset="MNIST",
        run=run,
        epsilon=epsilon,
        delta=1e-5,
        adjacency=ADD,
        spent_epsilon=0.0,
        mode=mode,
        orders=(8.0, 9.5),
        reserved=RUN,
        paid_for=tuple(PaidFor(run=name, event=event) for name, event in (paid_for or PAID_FOR).items()),
    )
    return replace(budget, spent_epsilon=spent_epsilon(budget))


@pytest.fixture(scope="module")
def honest() -> Certificate:
    published = Claim(
        epsilon=0.4,
        delta=1e-5,
        adjacency=ADD,
        accountant="rdp-mironov17",
        theorem="a paper's Theorem 1",
        premises=(Premise("rejected steps are free", Standing.BROKEN, "the choice looks at the records"),),
        proof=None,
    )
    return issue(
        RUN,
        delta=1e-5,
        stated=Statements(settings_chosen_on="fixed", records=60_000),
        budget=_budget(),
        audit=AuditResult(method="canaries", epsilon_lower_bound=0.5, confidence=0.95),
        published_claims=[published],
    )


def _with_claim(certificate: Certificate, **changes: object) -> Certificate:
    claim = replace(certificate.claim.claim, **changes)  # type: ignore[arg-type]
    return replace(certificate, claim=replace(certificate.claim, claim=claim))


def _with_epsilon(certificate: Certificate, epsilon: float) -> Certificate:
    return replace(_with_claim(certificate, epsilon=epsilon), epsilon=epsilon)


def _with_budget(certificate: Certificate, **changes: object) -> Certificate:
    assert certificate.budget is not None
    return replace(certificate, budget=replace(certificate.budget, **changes))  # type: ignore[arg-type]


def _with_ex_post(certificate: Certificate, event: Event, epsilon: float) -> Certificate:
    return replace(certificate, ex_post=ExPost(event=event, epsilon=epsilon))


def _without_replacement(*, records: int) -> Certificate:
    """One that is honest where the stated number of records is 1000."""
    event = Repeated(SampledWithoutReplacement(1000, 10, Gaussian(2.0)), 100)
    stated = Statements(settings_chosen_on="fixed", records=1000)
    certificate = issue(event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE, stated=stated)
    return replace(certificate, stated=replace(stated, records=records))


FORGERIES: dict[str, tuple[Change, str]] = {
    "a slightly smaller epsilon": (lambda c: _with_epsilon(c, c.epsilon * (1 - 1e-6)), "epsilon is stated as"),
    "a larger epsilon": (lambda c: _with_epsilon(c, c.epsilon * 1.001), "epsilon is stated as"),
    "another epsilon at the top": (lambda c: replace(c, epsilon=0.1), "at the top"),
    "another delta at the top": (lambda c: replace(c, delta=1e-3), "at the top"),
    "another adjacency": (lambda c: replace(c, adjacency=Adjacency.REPLACE_ONE), "adjacency is"),
    "more steps": (lambda c: replace(c, event=Repeated(STEP, 2001)), "epsilon is stated as"),
    "fewer steps": (lambda c: replace(c, event=Repeated(STEP, 1990)), "epsilon is stated as"),
    "less noise": (lambda c: replace(c, event=Repeated(PoissonSampled(512 / 60_000, Gaussian(1.2)), 2000)), "epsilon"),
    "no noise": (lambda c: replace(c, event=Gaussian(0.0)), "recomputed as inf"),
    "an accountant that estimates": (lambda c: _with_claim(c, accountant="gdp"), "the claim's accountant"),
    "an unknown accountant": (lambda c: _with_claim(c, accountant="oracle"), "the claim's accountant"),
    "another theorem": (lambda c: _with_claim(c, theorem="folklore"), "the claim's theorem"),
    "no premises": (lambda c: _with_claim(c, premises=()), "the claim's premises"),
    "another proof": (lambda c: _with_claim(c, proof="accounting/filter.proof.md"), "the claim's proof"),
    "another text of the proof": (lambda c: replace(c, claim=replace(c.claim, proof_sha256="0" * 64)), "relied on"),
    "no fingerprint": (lambda c: replace(c, claim=replace(c.claim, proof_sha256=None)), "relied on"),
    "a broken premise called proven": (
        lambda c: _with_claim(c, premises=(Premise("Poisson", Standing.BROKEN, "shuffled"),)),
        "calls itself proven, and by its premises it is published",
    ),
    "an estimate called proven": (lambda c: _with_claim(c, is_estimate=True), "by its premises it is estimate"),
    "a claim that is only published": (lambda c: replace(c, claim=c.published_claims[0]), "only a proven one"),
    "an assumption left out": (
        lambda c: replace(c, assumptions=tuple(a for a in c.assumptions if a != IDEAL_RANDOMNESS.statement)),
        "the random bits",
    ),
    "an assumption too many": (
        lambda c: replace(c, assumptions=(*c.assumptions, "the earth is round")),
        "nothing here rests on the assumption: the earth is round",
    ),
    "an assumption twice": (lambda c: replace(c, assumptions=(*c.assumptions, c.assumptions[0])), "another way"),
    "an accountant that was never asked": (
        lambda c: replace(c, passed_over=(replace(c.passed_over[0], accountant="oracle"), *c.passed_over[1:])),
        "passed over",
    ),
    "nothing passed over": (lambda c: replace(c, passed_over=()), "passed over"),
    "a day that is yet to come": (lambda c: replace(c, issued_on="9999-12-31"), "yet to come"),
    "another number of records": (lambda c: _without_replacement(records=2000), "2000 records are stated"),
    "more done than planned": (
        lambda c: replace(c, ex_post=ExPost(event=Repeated(STEP, 2001), epsilon=9.0)),
        "is not part of what the plan allowed",
    ),
    "a smaller ex-post epsilon": (
        lambda c: replace(c, ex_post=ExPost(event=Repeated(STEP, 500), epsilon=0.01)),
        "the ex-post epsilon",
    ),
    "a proven claim among the published": (lambda c: replace(c, published_claims=(c.claim,)), "a proven claim stands"),
    "a published claim called proven": (
        lambda c: replace(c, published_claims=(replace(c.published_claims[0], kind="proven"),)),
        "calls itself proven",
    ),
    "settings on private data for free": (
        lambda c: replace(c, stated=Statements(settings_chosen_on="private", records=60_000)),
        "epsilon is stated as",
    ),
    "a cost of settings that is not counted": (
        lambda c: replace(
            c, stated=Statements(settings_chosen_on="private", records=60_000), settings_cost=Gaussian(4.0)
        ),
        "is not part of the events",
    ),
    "a cost of settings that were fixed": (lambda c: replace(c, settings_cost=STEP), "and yet have a privacy cost"),
    "a budget that spent less": (lambda c: _with_budget(c, spent_epsilon=0.1), "the budget's spent epsilon"),
    "a budget that paid for less": (
        lambda c: _with_budget(c, paid_for=(PaidFor(run="first", event=Repeated(STEP, 499)),)),
        "the budget has not paid for",
    ),
    "a budget that paid for more": (
        lambda c: replace(c, budget=_budget(first=Repeated(STEP, 600))),
        "the certificate says that 500 ×",
    ),
    "a budget whose other run did this": (
        lambda c: replace(c, budget=_budget(first=Gaussian(90.0), other=RUN)),
        "the budget has not paid for 500 ×",
    ),
    "a budget that paid nothing for this run": (
        lambda c: replace(_with_ex_post(c, NOTHING, 0.0), budget=_budget(first=NOTHING, other=RUN)),
        "has paid for no run 'first'",
    ),
    "a budget and no word on what it charged": (lambda c: replace(c, ex_post=None), "does not say what that cost"),
    "a budget with two runs of one name": (
        lambda c: _with_budget(
            c,
            paid_for=(PaidFor(run="first", event=Repeated(STEP, 200)), PaidFor(run="first", event=Repeated(STEP, 300))),
        ),
        "two runs of one name",
    ),
    "a single plan that shares its budget": (
        lambda c: replace(c, budget=_budget(mode=SINGLE_PLAN)),
        "has not paid for the run 'first' alone",
    ),
    "a single plan of another run": (
        lambda c: replace(c, budget=_budget(mode=SINGLE_PLAN, first=NOTHING, other=RUN)),
        "has not paid for the run 'first' alone",
    ),
    "a budget of another run": (lambda c: _with_budget(c, run="second"), "has paid for no run 'second'"),
    "a budget by another adjacency": (
        lambda c: _with_budget(c, adjacency=Adjacency.REPLACE_ONE),
        "the budget counts by",
    ),
    "a budget with other orders": (lambda c: _with_budget(c, orders=(12.0,)), "the budget's spent epsilon"),
    "a budget without orders": (lambda c: _with_budget(c, orders=()), "orders must be"),
    "a budget that is overspent": (
        lambda c: replace(c, budget=_budget(epsilon=1.5, first=Repeated(STEP, 500), other=RUN)),
        "overspent",
    ),
    "an audit above the claim": (
        lambda c: replace(c, audit=AuditResult(method="canaries", epsilon_lower_bound=2.9, confidence=0.95)),
        "the audit shows epsilon 2.9",
    ),
}


def test_an_honest_certificate_holds(honest: Certificate) -> None:
    check(honest)


@pytest.mark.parametrize("name", FORGERIES)
def test_forgery_is_found(honest: Certificate, name: str) -> None:
    forge, complaint = FORGERIES[name]
    with pytest.raises(CertificateMismatch) as caught:
        check(forge(honest))
    assert complaint in str(caught.value)


def test_every_mismatch_is_listed(honest: Certificate) -> None:
    forged = _with_budget(_with_claim(replace(honest, epsilon=0.1), theorem="folklore"), run="second")
    found = mismatches(forged)
    for words in ("at the top", "theorem", "no run 'second'", "the budget has not paid for", "the audit shows"):
        assert sum(words in mismatch for mismatch in found) == 1
    assert len(found) == 5


def test_rounding_up_within_the_tolerance_holds(honest: Certificate) -> None:
    assert mismatches(_with_epsilon(honest, honest.epsilon * (1 + 5e-7))) == ()


@pytest.mark.parametrize("event", [RepeatAndSelect(Gaussian(0.0), mean=3.0), Gaussian(1e-200), Repeated(STEP, 10**18)])
def test_an_event_that_nothing_can_count_does_not_hold(honest: Certificate, event: Event) -> None:
    assert mismatches(replace(honest, event=event))


def test_a_budget_given_to_one_plan_is_counted_tightly(honest: Certificate) -> None:
    single, shared = _budget(mode=SINGLE_PLAN, first=RUN), _budget(mode=FILTER, first=RUN)
    assert single.spent_epsilon < shared.spent_epsilon
    check(replace(honest, budget=single))  # charged in full, though the run stopped early


def test_the_number_of_records_must_be_stated() -> None:
    certificate = _without_replacement(records=1000)
    check(certificate)
    [mismatch] = mismatches(replace(certificate, stated=replace(certificate.stated, records=None)))
    assert "the number of records is not stated" in mismatch


@pytest.mark.parametrize("records, delta, holds", [(500, 0.1, False), (500, 0.01, True), (60_000, 1e-3, False)])
def test_a_delta_that_would_allow_many_records_to_be_published_is_refused(
    records: int, delta: float, holds: bool
) -> None:
    stated = Statements(settings_chosen_on="fixed", records=records)
    if holds:
        assert "Caution" in certificate_text(issue(RUN, delta=delta, stated=stated))
        return
    with pytest.raises(CertificateMismatch, match="the largest that is certified"):
        issue(RUN, delta=delta, stated=stated)


MANY = Repeated(PoissonSampled(0.02, Gaussian(2.0)), 10**6)  # ε of more than 100
IN_LIMIT_MODE: dict[str, tuple[Event, Event, str]] = {
    "more than was reserved": (MANY, STEP, "the budget reserved"),
    "more than the filter admits": (MANY, MANY, "does not admit the reservation"),
    "something without noise": (
        Composed((STEP, NonPrivate("all"))),
        Composed((STEP, NonPrivate("all"))),
        "without noise",
    ),
    "a selection without noise": (
        Composed((STEP, RepeatAndSelect(NonPrivate("all"), mean=2.0))),
        Composed((STEP, RepeatAndSelect(NonPrivate("all"), mean=2.0))),
        "does not admit",
    ),
    "a small selection beside it": (Composed((MANY, RepeatAndSelect(Gaussian(90.0), mean=1.0))), MANY, "reserved"),
}


@pytest.mark.parametrize("name", IN_LIMIT_MODE)
def test_where_the_guarantee_is_a_limit_the_event_is_what_was_reserved_within_it(name: str) -> None:
    event, reserved, complaint = IN_LIMIT_MODE[name]
    stated = Statements(settings_chosen_on="private", records=60_000)
    honest = replace(_budget(first=STEP, search=STEP), reserved=STEP)
    certificate = issue(STEP, delta=1e-5, stated=stated, budget=honest)
    assert certificate.claim.claim.accountant == FILTER
    forged = replace(certificate, event=event, budget=replace(honest, reserved=reserved))
    assert any(complaint in mismatch for mismatch in mismatches(forged))
    with pytest.raises(CertificateMismatch):
        issue(event, delta=1e-5, stated=stated, budget=replace(honest, reserved=reserved))


def test_what_a_run_gave_back_and_a_later_one_reserved_does_not_count_twice() -> None:
    stated = Statements(settings_chosen_on="private", records=60_000)
    paid = _budget(search=Repeated(STEP, 400), first=Repeated(STEP, 100), later=Repeated(STEP, 4900))
    budget = replace(paid, reserved=Repeated(STEP, 5000))
    check(issue(Repeated(STEP, 5000), delta=1e-5, stated=stated, budget=budget))
    moved = replace(budget, paid_for=(*budget.paid_for[::2], budget.paid_for[1]))
    with pytest.raises(CertificateMismatch, match="does not admit the reservation"):
        issue(Repeated(STEP, 5000), delta=1e-5, stated=stated, budget=moved)


def test_the_budget_pays_for_choosing_the_settings_too() -> None:
    stated = Statements(settings_chosen_on="private", records=60_000)
    budget = _budget(first=Repeated(STEP, 500), search=Gaussian(20.0))
    certificate = issue(RUN, delta=1e-5, stated=stated, settings_cost=Gaussian(20.0), budget=budget)
    check(certificate)
    unpaid = replace(certificate, budget=_budget(first=Repeated(STEP, 500)))
    assert any("has not paid for choosing the settings" in mismatch for mismatch in mismatches(unpaid))


def test_a_run_chosen_after_a_private_search_is_guaranteed_the_limit_of_its_budget() -> None:
    stated = Statements(settings_chosen_on="private", records=60_000)
    budget = _budget(first=Repeated(STEP, 500), search=Repeated(STEP, 300))
    certificate = issue(RUN, delta=1e-6, stated=stated, budget=budget)
    assert (certificate.epsilon, certificate.delta) == (budget.epsilon, budget.delta)
    assert certificate.claim.claim.accountant == "filter"
    for words in ("the budget paid for everything", "the limit and the orders of the budget were chosen"):
        assert any(words in assumption for assumption in certificate.assumptions)
    check(certificate)
    tight = issue(RUN, delta=1e-5, stated=Statements(settings_chosen_on="fixed", records=60_000), budget=budget)
    forgeries = (
        _with_epsilon(certificate, 2.9),
        replace(_with_claim(certificate, delta=1e-6), delta=1e-6),
        replace(tight, stated=stated),
        replace(certificate, stated=Statements(settings_chosen_on="fixed", records=60_000)),
    )
    for forged in forgeries:
        assert mismatches(forged)


@pytest.mark.parametrize(
    "budget",
    [_budget(first=Repeated(STEP, 500)), _budget(mode=SINGLE_PLAN, first=RUN), None],
    ids=["paid for no search", "a single plan", "none"],
)
def test_a_private_search_that_no_budget_paid_for_is_not_certified(budget: SharedBudget | None) -> None:
    with pytest.raises(CertificateMismatch, match="neither an event nor a budget pays for that"):
        issue(RUN, delta=1e-5, stated=Statements(settings_chosen_on="private", records=60_000), budget=budget)


def test_another_proof_under_another_version_names_the_version(honest: Certificate) -> None:
    older = replace(honest, claim=replace(honest.claim, proof_sha256="0" * 64), library_version="0.0.7")
    [mismatch] = mismatches(older)
    assert mismatch.startswith("it was issued by Lehr 0.0.7 with another text of the proof")
    assert mismatches(replace(honest, library_version="0.0.7", accounting_version="lehr 0.0.7")) == ()


def test_what_no_code_can_establish_is_always_assumed(honest: Certificate) -> None:
    bare = replace(honest.claim.claim, premises=())
    for words in ("floating point", "random bits"):
        assert any(words in statement for statement in assumed_in(bare))


def test_the_stated_claim_of_an_infinite_cost_is_impossible(honest: Certificate) -> None:
    with pytest.raises(ValueError, match="finite"):
        StatedClaim(kind="proven", claim=replace(honest.claim.claim, epsilon=math.inf), proof_sha256=None)


def test_the_fingerprint_is_that_of_the_file() -> None:
    content = files("lehr").joinpath(*RenyiFilter.proof.split("/")).read_bytes()
    assert sha256_of_proof(RenyiFilter.proof) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../a.proof.md", "accounting/../../a.proof.md", "accounting/events.py", ""]
)
def test_only_proof_files_of_the_package_are_opened(path: str) -> None:
    with pytest.raises(InvalidValue, match="inside the package"):
        sha256_of_proof(path)


def test_a_missing_proof_is_named() -> None:
    with pytest.raises(InvalidValue, match=r"that this version of Lehr has; given: 'accounting/none\.proof\.md'"):
        sha256_of_proof("accounting/none.proof.md")
