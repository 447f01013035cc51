"""What a paper's own rule says about a plan, beside what is proven. A broken rule gives a number, and no guarantee."""

from __future__ import annotations

from lehr.accounting.accountant import ACCOUNTANTS
from lehr.accounting.accountant import claim as proven_claim
from lehr.claims import Claim, Premise, PublishedRule, Standing
from lehr.events import NOTHING, Event, NonPrivate, composed, counted, together
from lehr.planning.plan import Plan


def published_event(rule: PublishedRule, plan: Plan, *, beside: Event = NOTHING) -> Event:
    """What the paper counts: what it does not see is left out, and so is, in some, what was not accepted.

    ``beside`` is what else the run does to the records, such as a PCA or charged scores.
    """
    steps = plan.stops_at_accepted if rule.counts_accepted_only and plan.stops_at_accepted else plan.steps
    seen = counted(together(plan.events(0, steps), beside))
    return composed({atom: count for atom, count in seen.items() if not isinstance(atom, NonPrivate)})


def published_claim(rule: PublishedRule, plan: Plan, *, beside: Event = NOTHING) -> Claim:
    """The claim that the paper would make. Where the rule holds, it is a proven one by the paper's accountant."""
    event, accountant = published_event(rule, plan, beside=beside), ACCOUNTANTS[rule.accountant]
    premises = proven_claim(event, delta=plan.delta, adjacency=plan.adjacency).premises
    broken = [Premise(rule.theorem, Standing.BROKEN, because=f"{rule.because}; shown in {rule.shown_in}")]
    if not rule.is_broken:
        is_whole = counted(event) == counted(together(plan.event, beside))
        broken = [] if is_whole else [Premise(rule.theorem, Standing.BROKEN, because=_NOT_ALL)]
    return Claim(
        epsilon=accountant.epsilon(event, delta=plan.delta, adjacency=plan.adjacency),
        delta=plan.delta,
        adjacency=plan.adjacency,
        accountant=accountant.name,
        theorem=f"{rule.paper}: {rule.theorem}",
        premises=(*broken, *premises),
        proof=None if broken else accountant.proof,
    )


_NOT_ALL = "the rule leaves out a part of what the run does to the records"
