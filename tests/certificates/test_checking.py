"""Certificates are issued for proven claims only; every honest one passes its check, and every forged one fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

import lehr
from lehr import accounting
from lehr.accounting.claims import Claim, Premise, Standing
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Laplace,
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
    Statements,
    certificate_text,
    read_certificate,
    write_certificate,
)
from lehr.certificates.checking import check, mismatches, sha256_of_proof, spent_epsilon
from lehr.certificates.issuing import issue, reissue, shared_budget
from lehr.errors import CertificateMismatch, InvalidValue
from lehr.planning.budget import FILTER, SINGLE_PLAN, Budget

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
RUN = Repeated(STEP, 2000)
ADD = Adjacency.ADD_OR_REMOVE_ONE
PAID_FOR: dict[str, Event] = {"first": Repeated(STEP, 500), "other": Repeated(STEP, 300)}
FIXED = Statements(settings_chosen_on="fixed", records=60_000)
CHOSEN_PRIVATELY = replace(FIXED, settings_chosen_on="private")
TOO_MUCH = AuditResult(method="canaries", epsilon_lower_bound=50.0, confidence=0.95)
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
        stated=FIXED,
        budget=_budget(),
        audit=AuditResult(method="canaries", epsilon_lower_bound=0.5, confidence=0.95),
        published_claims=[published],
    )


def _with_budget(certificate: Certificate, **changes: object) -> Certificate:
    assert certificate.budget is not None
    return replace(certificate, budget=replace(certificate.budget, **changes))  # type: ignore[arg-type]


def _without_replacement(*, records: int) -> Certificate:
    """One that is honest where the stated number of records is 1000."""
    event = Repeated(SampledWithoutReplacement(1000, 10, Gaussian(2.0)), 100)
    stated = Statements(settings_chosen_on="fixed", records=1000)
    certificate = issue(event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE, stated=stated)
    return replace(certificate, stated=replace(stated, records=records))


FORGERIES: dict[str, tuple[Change, str]] = {
    "a slightly smaller epsilon": (lambda c: replace(c, epsilon=c.epsilon * (1 - 1e-6)), "epsilon is stated as"),
    "a larger epsilon": (lambda c: replace(c, epsilon=c.epsilon * 1.001), "epsilon is stated as"),
    "another delta": (lambda c: replace(c, delta=1e-4), "epsilon is stated as"),
    "another adjacency": (lambda c: replace(c, adjacency=Adjacency.REPLACE_ONE), "the budget counts by"),
    "more steps": (lambda c: replace(c, event=Repeated(STEP, 2001)), "epsilon is stated as"),
    "fewer steps": (lambda c: replace(c, event=Repeated(STEP, 1990)), "epsilon is stated as"),
    "less noise": (lambda c: replace(c, event=Repeated(PoissonSampled(512 / 60_000, Gaussian(1.2)), 2000)), "epsilon"),
    "no noise": (lambda c: replace(c, event=Gaussian(0.0)), "recomputed as inf"),
    "an accountant that estimates": (lambda c: replace(c, accountant="gdp"), "accountant is not"),
    "an unknown accountant": (lambda c: replace(c, accountant="oracle"), "accountant is not"),
    "another theorem": (lambda c: replace(c, theorem="folklore"), "theorem is not"),
    "no premises": (lambda c: replace(c, premises=()), "premises is not"),
    "another proof": (lambda c: replace(c, proof="accounting/filter.proof.md"), "proof is not"),
    "another text of the proof": (lambda c: replace(c, proof_sha256="0" * 64), "relied on"),
    "a broken premise": (
        lambda c: replace(c, premises=(Premise("Poisson", Standing.BROKEN, "shuffled"),)),
        "premises is not",
    ),
    "an assumption left out": (lambda c: replace(c, assumptions=c.assumptions[1:]), "assumptions is not"),
    "an assumption too many": (lambda c: replace(c, assumptions=(*c.assumptions, "x")), "assumptions is not"),
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
    "settings on private data for free": (
        lambda c: replace(c, stated=CHOSEN_PRIVATELY),
        "epsilon is stated as",
    ),
    "a cost of settings that is not counted": (
        lambda c: replace(c, stated=CHOSEN_PRIVATELY, settings_cost=Gaussian(4.0)),
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
        lambda c: replace(c, ex_post=ExPost(event=NOTHING, epsilon=0.0), budget=_budget(first=NOTHING, other=RUN)),
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
    forged = _with_budget(replace(honest, epsilon=0.1, theorem="folklore"), run="second")
    found = mismatches(forged)
    for words in ("epsilon is", "theorem", "no run 'second'", "the budget has not paid for", "the audit shows"):
        assert sum(words in mismatch for mismatch in found) == 1
    assert len(found) == 5


def test_rounding_up_within_the_tolerance_holds(honest: Certificate) -> None:
    assert mismatches(replace(honest, epsilon=honest.epsilon * (1 + 5e-7))) == ()


@pytest.mark.parametrize("event", [RepeatAndSelect(Gaussian(0.0), mean=3.0), Gaussian(1e-200), Repeated(STEP, 10**18)])
def test_an_event_that_nothing_can_count_does_not_hold(honest: Certificate, event: Event) -> None:
    assert mismatches(replace(honest, event=event))


def test_another_version_may_have_another_proof_but_not_other_numbers(honest: Certificate) -> None:
    [mismatch] = mismatches(replace(honest, proof_sha256="0" * 64, library_version="0.0.7"))
    assert "issued by Lehr 0.0.7" in mismatch
    assert mismatches(replace(honest, library_version="0.0.7", accounting_version="lehr 0.0.7")) == ()


def test_the_number_of_records_must_be_stated() -> None:
    certificate = _without_replacement(records=1000)
    check(certificate)
    [mismatch] = mismatches(replace(certificate, stated=replace(certificate.stated, records=None)))
    assert "the number of records is not stated" in mismatch


@pytest.mark.parametrize("records, delta, holds", [(500, 0.1, False), (500, 0.01, True), (60_000, 1e-3, False)])
def test_a_large_delta_is_not_certified(records: int, delta: float, holds: bool) -> None:
    stated = Statements(settings_chosen_on="fixed", records=records)
    if holds:
        assert "Caution" in certificate_text(issue(RUN, delta=delta, stated=stated))
        return
    with pytest.raises(CertificateMismatch, match="the largest that is certified"):
        issue(RUN, delta=delta, stated=stated)


def test_the_fingerprint_of_a_proof_is_that_of_its_file() -> None:
    content = files("lehr").joinpath(*RenyiFilter.proof.split("/")).read_bytes()
    assert sha256_of_proof(RenyiFilter.proof) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../a.proof.md", "accounting/../../a.proof.md", "accounting/events.py", "a/none.proof.md", ""],
)
def test_only_proof_files_of_the_package_are_opened(path: str) -> None:
    with pytest.raises(InvalidValue, match="proof"):
        sha256_of_proof(path)


# Budgets, and settings that were chosen on private data.


def test_a_budget_given_to_one_plan_is_counted_tightly(honest: Certificate) -> None:
    single, shared = _budget(mode=SINGLE_PLAN, first=RUN), _budget(mode=FILTER, first=RUN)
    assert single.spent_epsilon < shared.spent_epsilon
    check(replace(honest, budget=single))  # charged in full, though the run stopped early


MANY = Repeated(PoissonSampled(0.02, Gaussian(2.0)), 10**6)  # ε of more than 100
NOTHING_NOISED = Composed((STEP, NonPrivate("all")))
SELECTS = Composed((STEP, RepeatAndSelect(NonPrivate("all"), mean=2.0)))
IN_LIMIT_MODE: dict[str, tuple[Event, Event, str]] = {
    "more than was reserved": (MANY, STEP, "the budget reserved"),
    "more than the filter admits": (MANY, MANY, "does not admit the reservation"),
    "something without noise": (NOTHING_NOISED, NOTHING_NOISED, "without noise"),
    "a selection without noise": (SELECTS, SELECTS, "does not admit"),
    "a small selection beside it": (Composed((MANY, RepeatAndSelect(Gaussian(90.0), mean=1.0))), MANY, "reserved"),
}


@pytest.mark.parametrize("name", IN_LIMIT_MODE)
def test_under_a_limit_the_event_is_what_the_budget_reserved(name: str) -> None:
    event, reserved, complaint = IN_LIMIT_MODE[name]
    honest = replace(_budget(first=STEP, search=STEP), reserved=STEP)
    certificate = issue(STEP, delta=1e-5, stated=CHOSEN_PRIVATELY, budget=honest)
    assert certificate.accountant == FILTER
    forged = replace(certificate, event=event, budget=replace(honest, reserved=reserved))
    assert any(complaint in mismatch for mismatch in mismatches(forged))
    with pytest.raises(CertificateMismatch):
        issue(event, delta=1e-5, stated=CHOSEN_PRIVATELY, budget=replace(honest, reserved=reserved))


def test_what_one_run_gave_back_and_a_later_one_reserved_does_not_count_twice() -> None:
    paid = _budget(search=Repeated(STEP, 400), first=Repeated(STEP, 100), later=Repeated(STEP, 4900))
    budget = replace(paid, reserved=Repeated(STEP, 5000))
    check(issue(Repeated(STEP, 5000), delta=1e-5, stated=CHOSEN_PRIVATELY, budget=budget))
    moved = replace(budget, paid_for=(*budget.paid_for[::2], budget.paid_for[1]))
    with pytest.raises(CertificateMismatch, match="does not admit the reservation"):
        issue(Repeated(STEP, 5000), delta=1e-5, stated=CHOSEN_PRIVATELY, budget=moved)


def test_the_budget_pays_for_choosing_the_settings_too() -> None:
    budget = _budget(first=Repeated(STEP, 500), search=Gaussian(20.0))
    certificate = issue(RUN, delta=1e-5, stated=CHOSEN_PRIVATELY, settings_cost=Gaussian(20.0), budget=budget)
    check(certificate)
    unpaid = replace(certificate, budget=_budget(first=Repeated(STEP, 500)))
    assert any("has not paid for choosing the settings" in mismatch for mismatch in mismatches(unpaid))


def test_after_a_private_search_the_guarantee_is_the_limit_of_the_budget() -> None:
    budget = _budget(first=Repeated(STEP, 500), search=Repeated(STEP, 300))
    certificate = issue(RUN, delta=1e-6, stated=CHOSEN_PRIVATELY, budget=budget)
    assert (certificate.epsilon, certificate.delta, certificate.accountant) == (budget.epsilon, budget.delta, FILTER)
    for words in ("the budget paid for everything", "the limit and the orders of the budget were chosen"):
        assert any(words in assumption for assumption in certificate.assumptions)
    check(certificate)
    tight = issue(RUN, delta=1e-5, stated=FIXED, budget=budget)
    for forged in (
        replace(certificate, epsilon=2.9),
        replace(certificate, delta=1e-6),
        replace(tight, stated=CHOSEN_PRIVATELY),
        replace(certificate, stated=FIXED),
    ):
        assert mismatches(forged)


@pytest.mark.parametrize(
    "budget",
    [_budget(first=Repeated(STEP, 500)), _budget(mode=SINGLE_PLAN, first=RUN), None],
    ids=["paid for no search", "a single plan", "none"],
)
def test_a_private_search_that_nobody_paid_for_is_not_certified(budget: SharedBudget | None) -> None:
    with pytest.raises(CertificateMismatch, match="neither an event nor a budget pays for that"):
        issue(RUN, delta=1e-5, stated=CHOSEN_PRIVATELY, budget=budget)


def test_the_cost_of_choosing_settings_is_part_of_the_guarantee() -> None:
    certificate = issue(
        RUN, delta=1e-5, stated=CHOSEN_PRIVATELY, settings_cost=Gaussian(4.0), charged=Repeated(STEP, 100)
    )
    assert certificate.event == Composed((RUN, Gaussian(4.0)))
    assert certificate.epsilon > issue(RUN, delta=1e-5, stated=FIXED).epsilon
    assert certificate.ex_post is not None
    assert certificate.ex_post.event == Composed((Repeated(STEP, 100), Gaussian(4.0)))
    forged = replace(certificate, ex_post=replace(certificate.ex_post, event=Repeated(STEP, 100)))
    assert any("leaves out the cost of choosing" in mismatch for mismatch in mismatches(forged))


def test_a_budget_lists_what_else_it_paid_for(tmp_path: Path) -> None:
    with Budget.create(tmp_path / "mnist.budget", dataset="MNIST", epsilon=3.0, delta=1e-5) as budget:
        budget.reserve(Repeated(STEP, 500), run="search")
        budget.reserve(RUN, run="final")
        budget.spend("final", Repeated(STEP, 1500))
        budget.settle("final")
        status = budget.status()
    shared = shared_budget(status, run="final")
    paid = [(payment.run, payment.event) for payment in shared.paid_for]
    assert paid == [("search", Repeated(STEP, 500)), ("final", Repeated(STEP, 1500))]
    assert shared.spent_epsilon == pytest.approx(status.epsilon_spent, rel=1e-7)
    certificate = issue(RUN, delta=1e-5, stated=FIXED, charged=Repeated(STEP, 1500), budget=shared)
    assert issue(RUN, delta=1e-5, stated=FIXED, budget=shared) == certificate
    for steps in (1499, 1501):
        with pytest.raises(CertificateMismatch, match=r"the budget (charged|has not paid for)"):
            issue(RUN, delta=1e-5, stated=FIXED, charged=Repeated(STEP, steps), budget=shared)
    with pytest.raises(InvalidValue, match="run"):
        shared_budget(status, run="unknown")


# Issuing.


def test_the_certified_epsilon_is_the_bound_rounded_up() -> None:
    certificate, bound = issue(RUN, delta=1e-5, stated=FIXED), accounting.bound(RUN, delta=1e-5)
    assert bound.epsilon <= certificate.epsilon <= bound.epsilon * (1 + 1e-7)
    assert (certificate.accountant, certificate.library_version) == (bound.accountant, lehr.__version__)
    for words in ("floating point", "random bits"):  # no code can establish these
        assert any(words in statement for statement in certificate.assumptions)


@pytest.mark.parametrize(
    "event",
    [
        Repeated(Gaussian(30.0), 10),
        Laplace(2.0),
        Composed((RUN, Gaussian(8.0))),
        PoissonSampled(1.0, Gaussian(9.0)),
        RepeatAndSelect(Repeated(STEP, 100), mean=4.0),
    ],
)
def test_what_is_issued_survives_its_file_and_its_check(tmp_path: Path, event: Event) -> None:
    stated = CHOSEN_PRIVATELY if isinstance(event, RepeatAndSelect) else FIXED
    write_certificate(tmp_path / "certificate.json", issue(event, delta=1e-6, stated=stated))
    check(read_certificate(tmp_path / "certificate.json"))


@pytest.mark.parametrize("event", [Gaussian(0.0), NonPrivate("a plot of the records"), Composed((RUN, Gaussian(0.0)))])
def test_an_infinite_epsilon_is_not_certified(event: Event) -> None:
    with pytest.raises((InvalidValue, CertificateMismatch)):
        issue(event, delta=1e-5, stated=FIXED)


def test_steps_taken_are_shown_ex_post_and_do_not_change_the_guarantee() -> None:
    certificate = issue(RUN, delta=1e-5, stated=FIXED, charged=Repeated(STEP, 100))
    assert certificate.ex_post is not None
    assert certificate.ex_post.epsilon < certificate.epsilon
    assert certificate.epsilon == issue(RUN, delta=1e-5, stated=FIXED).epsilon


def test_an_audit_is_added_to_a_certificate_that_holds() -> None:
    before = issue(RUN, delta=1e-5, stated=FIXED)
    audit = AuditResult(method="canaries", epsilon_lower_bound=1.0, confidence=0.95)
    again = reissue(before, audit=audit)
    assert again == replace(before, audit=audit, issued_on=again.issued_on)
    for certificate, found in ((before, TOO_MUCH), (replace(before, epsilon=0.1), None)):
        with pytest.raises(CertificateMismatch):
            reissue(certificate, audit=found)
