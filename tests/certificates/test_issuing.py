from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import lehr
from lehr import accounting
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    RepeatAndSelect,
    Repeated,
)
from lehr.certificates.certificate import AuditResult, Statements, read_certificate, write_certificate
from lehr.certificates.checking import check, mismatches
from lehr.certificates.issuing import issue, reissue, shared_budget
from lehr.errors import CertificateMismatch, InvalidValue
from lehr.planning.budget import Budget

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
RUN = Repeated(STEP, 2000)
FIXED = Statements(settings_chosen_on="fixed", records=1000)


def test_the_certified_epsilon_is_the_bound_rounded_up() -> None:
    certificate = issue(RUN, delta=1e-5, stated=FIXED)
    bound = accounting.bound(RUN, delta=1e-5)
    assert bound.epsilon <= certificate.epsilon <= bound.epsilon * (1 + 1e-7)
    assert certificate.claim.claim.accountant == bound.accountant
    assert {other.accountant for other in certificate.passed_over} == {other.accountant for other in bound.passed_over}
    assert certificate.library_version == lehr.__version__


def test_what_is_issued_survives_its_file_and_its_check(tmp_path: Path) -> None:
    write_certificate(tmp_path / "certificate.json", issue(RUN, delta=1e-5, stated=FIXED))
    check(read_certificate(tmp_path / "certificate.json"))


@pytest.mark.parametrize(
    "event",
    [Repeated(Gaussian(30.0), 10), Laplace(2.0), Composed((RUN, Gaussian(8.0))), PoissonSampled(1.0, Gaussian(9.0))],
)
def test_other_events_are_certified_too(event: lehr.Event) -> None:
    check(issue(event, delta=1e-6, stated=FIXED))


def test_sampling_without_replacement_is_certified_under_replace_one() -> None:
    event = Repeated(lehr.SampledWithoutReplacement(1000, 10, Gaussian(2.0)), 100)
    certificate = issue(event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE, stated=FIXED)
    assert certificate.adjacency is Adjacency.REPLACE_ONE
    check(certificate)


@pytest.mark.parametrize("event", [Gaussian(0.0), NonPrivate("a plot of the records"), Composed((RUN, Gaussian(0.0)))])
def test_an_infinite_epsilon_is_not_certified(event: lehr.Event) -> None:
    with pytest.raises((InvalidValue, CertificateMismatch)):
        issue(event, delta=1e-5, stated=FIXED)


def test_steps_taken_are_shown_ex_post_and_do_not_change_the_guarantee() -> None:
    certificate = issue(RUN, delta=1e-5, stated=FIXED, charged=Repeated(STEP, 100))
    assert certificate.ex_post is not None
    assert certificate.ex_post.epsilon < certificate.epsilon
    assert certificate.epsilon == issue(RUN, delta=1e-5, stated=FIXED).epsilon


def test_more_steps_than_planned_are_not_certified() -> None:
    with pytest.raises(CertificateMismatch, match="not part of what the plan allowed"):
        issue(RUN, delta=1e-5, stated=FIXED, charged=Repeated(STEP, 2001))


def test_choosing_settings_on_private_data_is_added_to_the_cost() -> None:
    stated = replace(FIXED, settings_chosen_on="private")
    with pytest.raises(CertificateMismatch, match="neither an event nor a budget pays for that"):
        issue(RUN, delta=1e-5, stated=stated)
    certificate = issue(RUN, delta=1e-5, stated=stated, settings_cost=Gaussian(4.0))
    assert certificate.event == Composed((RUN, Gaussian(4.0)))
    assert certificate.epsilon > issue(RUN, delta=1e-5, stated=FIXED).epsilon


def test_what_was_done_includes_choosing_the_settings() -> None:
    stated = replace(FIXED, settings_chosen_on="private")
    certificate = issue(RUN, delta=1e-5, stated=stated, settings_cost=Gaussian(4.0), charged=Repeated(STEP, 100))
    assert certificate.ex_post is not None
    assert certificate.ex_post.event == Composed((Repeated(STEP, 100), Gaussian(4.0)))
    forged = replace(certificate, ex_post=replace(certificate.ex_post, event=Repeated(STEP, 100)))
    assert any("leaves out the cost of choosing" in mismatch for mismatch in mismatches(forged))


def test_a_private_selection_pays_for_itself() -> None:
    stated = replace(FIXED, settings_chosen_on="private")
    selection = RepeatAndSelect(Repeated(STEP, 100), mean=4.0)
    check(issue(selection, delta=1e-5, stated=stated))


def test_an_audit_above_the_claim_stops_the_certificate() -> None:
    audit = AuditResult(method="canaries", epsilon_lower_bound=50.0, confidence=0.95)
    with pytest.raises(CertificateMismatch, match="the audit shows"):
        issue(RUN, delta=1e-5, stated=FIXED, audit=audit)


def test_a_published_claim_must_not_be_a_proven_one() -> None:
    with pytest.raises(CertificateMismatch, match="a proven claim stands among the published"):
        issue(RUN, delta=1e-5, stated=FIXED, published_claims=[accounting.claim(RUN, delta=1e-5)])


def test_a_shared_budget_tells_what_else_it_paid_for(tmp_path: Path) -> None:
    with Budget.create(tmp_path / "mnist.budget", dataset="MNIST", epsilon=3.0, delta=1e-5) as budget:
        budget.reserve(Repeated(STEP, 500), run="search")
        budget.reserve(RUN, run="final")
        budget.spend("final", Repeated(STEP, 1500))
        budget.settle("final")
        status = budget.status()
    shared = shared_budget(status, run="final")
    assert [(paid.run, paid.event) for paid in shared.paid_for] == [
        ("search", Repeated(STEP, 500)),
        ("final", Repeated(STEP, 1500)),
    ]
    assert shared.spent_epsilon == pytest.approx(status.epsilon_spent, rel=1e-7)
    certificate = issue(RUN, delta=1e-5, stated=FIXED, charged=Repeated(STEP, 1500), budget=shared)
    check(certificate)
    assert issue(RUN, delta=1e-5, stated=FIXED, budget=shared) == certificate
    for steps in (1499, 1501):
        with pytest.raises(CertificateMismatch, match=r"the budget (charged|has not paid for)"):
            issue(RUN, delta=1e-5, stated=FIXED, charged=Repeated(STEP, steps), budget=shared)


def test_a_budget_given_whole_to_one_plan_is_told_as_such(tmp_path: Path) -> None:
    with Budget.create(tmp_path / "mnist.budget", dataset="MNIST", epsilon=3.0, delta=1e-5) as budget:
        budget.reserve(RUN, run="only", whole_budget=True)
        shared = shared_budget(budget.status(), run="only")
    certificate = issue(RUN, delta=1e-5, stated=FIXED, budget=shared)
    assert shared.mode == "single plan"
    assert math.isclose(shared.spent_epsilon, certificate.epsilon, rel_tol=1e-7)


def test_a_certificate_is_issued_again_with_what_an_attack_has_shown_and_promises_the_same() -> None:
    before = issue(RUN, delta=1e-5, stated=FIXED)
    audit = AuditResult(method="canaries", epsilon_lower_bound=1.0, confidence=0.95)
    again = reissue(before, audit=audit)
    assert again == replace(before, audit=audit)
    assert mismatches(again) == ()


def test_what_contradicts_a_certificate_or_has_none_that_holds_is_not_issued_again() -> None:
    before = issue(RUN, delta=1e-5, stated=FIXED)
    with pytest.raises(CertificateMismatch, match="the audit shows"):
        reissue(before, audit=AuditResult(method="canaries", epsilon_lower_bound=50.0, confidence=0.95))
    with pytest.raises(CertificateMismatch, match="does not hold"):
        reissue(replace(before, epsilon=0.1), audit=None)
