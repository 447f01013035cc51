"""What a paper's own rule says about a plan, and why that is not always a guarantee."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.accounting import ACCOUNTANTS, bound
from lehr.claims import PublishedRule
from lehr.events import Gaussian, NonPrivate, PoissonSampled, PureDP, Repeated, counted, together
from lehr.planning.plan import Plan
from lehr.planning.published import published_claim, published_event
from lehr.schedules import LinearDecay

PLAN = Plan(noise_multiplier=1.0, expected_batch_size=10, records=100, steps=33, delta=1e-4)
STEP = PoissonSampled(0.1, Gaussian(1.0))
SOUND = PublishedRule(paper="Somebody (2020)", theorem="Theorem 1")
BROKEN = replace(SOUND, because="it is not so", shown_in="docs/published_claims.md")
ACCEPTED_ONLY = replace(BROKEN, counts_accepted_only=True)


def test_a_rule_for_all_candidates_counts_them_all() -> None:
    assert counted(published_event(BROKEN, replace(PLAN, stops_at_accepted=3))) == {STEP: 33}


def test_a_rule_for_accepted_candidates_counts_as_many_steps() -> None:
    assert counted(published_event(ACCEPTED_ONLY, replace(PLAN, stops_at_accepted=3))) == {STEP: 3}
    assert counted(published_event(ACCEPTED_ONLY, PLAN)) == {STEP: 33}  # where no number is said, all of them


def test_under_a_schedule_the_first_steps_are_the_ones_counted() -> None:
    scheduled = replace(PLAN, noise_schedule=LinearDecay(steps=4, first=2.0, last=1.0), stops_at_accepted=2)
    assert counted(published_event(ACCEPTED_ONLY, scheduled)) == {
        PoissonSampled(0.1, Gaussian(2.0)): 1,
        PoissonSampled(0.1, Gaussian(1.75)): 1,
    }


def test_a_rule_does_not_see_what_has_no_noise_and_sees_what_is_asked() -> None:
    asked = together(PureDP(0.1), NonPrivate("looks at gradients"))
    assert counted(published_event(BROKEN, replace(PLAN, asked=asked))) == {STEP: 33, PureDP(0.1): 33}


@pytest.mark.parametrize("accountant", ["rdp-mironov17", "rdp-balle20"])
def test_the_number_is_that_of_the_papers_accountant(accountant: str) -> None:
    claim = published_claim(replace(SOUND, accountant=accountant), PLAN)
    assert claim.epsilon == ACCOUNTANTS[accountant].epsilon(PLAN.event, delta=1e-4, adjacency=PLAN.adjacency)
    assert claim.accountant == accountant


def test_a_rule_that_holds_gives_a_proven_claim_which_is_no_smaller_than_the_bound() -> None:
    claim = published_claim(SOUND, PLAN)
    assert claim.is_proven
    assert claim.proof is not None
    assert claim.theorem == "Somebody (2020): Theorem 1"
    assert claim.epsilon >= bound(Repeated(STEP, 33), delta=1e-4).epsilon


def test_a_broken_rule_gives_a_number_with_its_reason_and_where_it_is_shown() -> None:
    claim = published_claim(ACCEPTED_ONLY, replace(PLAN, stops_at_accepted=3))
    assert claim.kind == "published"
    assert claim.proof is None
    [premise] = claim.broken
    assert premise.statement == "Theorem 1"
    assert premise.because == "it is not so; shown in docs/published_claims.md"
    assert claim.epsilon < PLAN.bound().epsilon
