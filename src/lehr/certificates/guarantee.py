"""A guarantee in words and as JSON, and which runs have none: too large a δ, declared public, or a simulation.

>>> from lehr.planning.simulation import simulate
>>> plan = Plan(noise_multiplier=2.0, expected_batch_size=256, records=1464, steps=4, delta=1e-4)
>>> print(why_no_guarantee(plan, declared="private"), "|", why_no_guarantee(plan, declared="public"))
None | the training records were declared public
>>> print(why_no_guarantee(simulate(plan, expected_batch_size=32), declared="public"))
it is a simulation of batches of 256 at noise multiplier 2 by batches of 32 at 0.25, and its own ε is 18.11
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

from lehr.accounting.claims import Claim
from lehr.accounting.events import Adjacency
from lehr.certificates import dataclass_json
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.plan import PRIVATE, Plan
from lehr.planning.simulation import simulation_words
from lehr.rounding import at_most, at_most_times, exactly, rounded_up
from lehr.run.shape import INFINITY

ADJACENCY_IN_WORDS = {
    Adjacency.ADD_OR_REMOVE_ONE: "whether it is in the data or not",
    Adjacency.REPLACE_ONE: "whether it is in the data or replaced by another",
    Adjacency.ZERO_OUT: "whether it is in the data or a record in its place that adds nothing",
}
MOST_DELTA = 0.01
MOST_RECORDS_EXPOSED = 10  # δ · records is how many records δ alone allows to be published, on average
DIGITS = 8  # coarser than what two machines may differ by: a run resumes only with the same configuration


def guarantee_text(*, epsilon: float, delta: float, adjacency: Adjacency, unit: str = "one record") -> str:
    """One (ε, δ) in words.

    >>> print(guarantee_text(epsilon=3.0, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE))
    ε = 3 at δ = 1e-05. Because of one record (whether it is in the data or not), any conclusion from what was \
released becomes at most 20.1 times as likely, except with a probability of about 1e-05.
    """
    return (
        f"ε = {at_most(epsilon)} at δ = {exactly(delta)}. Because of {unit} ({ADJACENCY_IN_WORDS[adjacency]}), any "
        f"conclusion from what was released becomes at most {at_most_times(epsilon)} times as likely, except with a "
        f"probability of about {exactly(delta)}."
    )


def best_guess_text(*, epsilon: float, delta: float, unit: str = "one record") -> str:
    """The same (ε, δ) as the accuracy of the best membership guess (Wasserman & Zhou 2010; Kairouz et al. 2015).

    >>> best_guess_text(epsilon=1.0, delta=1e-5)
    'A 50/50 membership guess about one record can be right at most 73.11 % of the time, whatever else is known.'
    """
    odds = math.exp(-epsilon)
    # Both errors are at least (1 - δ) / (1 + e^ε); written with e^-ε, which does not overflow for a large ε.
    right = min(100.0, rounded_up(100 * (1 - (1 - delta) * odds / (1 + odds)), digits=4))
    return (
        f"A 50/50 membership guess about {unit} can be right at most {right:.4g} % of the time, whatever else is known."
    )


def why_no_guarantee(plan: Plan, *, declared: str) -> str | None:
    """Why a run of this plan has no guarantee, whatever is proven about its noise; None where it may have one."""
    if plan.simulates is not None:
        return f"{simulation_words(plan)}, and its own ε is {at_most(_epsilon(plan))}"
    if declared != PRIVATE:
        return f"the training records were declared {declared}"
    return why_delta_is_too_large(plan.delta, records=plan.records)


@lru_cache(maxsize=16)  # accounting is slow, and the run, its page and its card ask for the same
def _epsilon(plan: Plan) -> float:
    return plan.bound().epsilon


def largest_delta(records: int) -> float:
    """The largest δ that is certified for so many records. Why: docs/certificate.md.

    >>> largest_delta(60_000), largest_delta(50)
    (0.00016666666666666666, 0.01)
    """
    return min(MOST_DELTA, MOST_RECORDS_EXPOSED / records)


def why_delta_is_too_large(delta: float, *, records: int) -> str | None:
    """Why nothing is certified at this δ for so many records; None where something may be."""
    if delta <= largest_delta(records):
        return None
    return f"δ = {delta:g} is above {largest_delta(records):.3g}, the largest that is certified for {records:,} records"


def delta_warning(delta: float, *, records: int) -> str | None:
    """A warning where δ is at least one over the number of records."""
    if delta * records < 1:
        return None
    return (
        f"δ = {delta:g} for {records:,} records allows {delta * records:.3g} of them to be published, on average; "
        f"choose one well below {1 / records:.3g}"
    )


def check_delta(delta: float, *, records: int, is_certified: bool) -> None:
    """Warn where δ is at least 1 / records; refuse a δ that is too large for the certificate that is asked for."""
    if is_certified and why_delta_is_too_large(delta, records=records) is not None:
        allowed = f"at most {largest_delta(records):.3g} for a certificate about {records:,} records"
        raise InvalidValue("delta", allowed=allowed, given=delta)
    if (caution := delta_warning(delta, records=records)) is not None:
        warnings.warn(caution, stacklevel=3)


# A run's claims: the proven one, and that of its paper's rule.


def why_not_proven(claim: Claim) -> str:
    """Why a published claim is no guarantee; empty where it is one."""
    return "; ".join(premise.because for premise in claim.broken)


def published_text(claim: Claim) -> str:
    """The ε of a paper's rule and whether it is a guarantee, to stand behind "as published"."""
    if claim.is_proven:
        return f"{at_most(claim.epsilon)} by {claim.theorem}; this rule is proven too"
    return f"{at_most(claim.epsilon)} — not a guarantee: {why_not_proven(claim)}"


def claim_summary(claim: Claim | None) -> dict[str, object] | None:
    """A claim in the JSON output of commands."""
    if claim is None:
        return None
    return {
        "kind": claim.kind,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "accountant": claim.accountant,
        "theorem": claim.theorem,
        "not_a_guarantee_because": why_not_proven(claim) or None,
    }


def claim_to_json(claim: Claim) -> dict[str, object]:
    """The JSON form, for ``config.json``. An infinite ε is a word."""
    epsilon = rounded_up(claim.epsilon, digits=DIGITS)
    written = {**dataclass_json.to_json(claim), "epsilon": INFINITY if epsilon == math.inf else epsilon}
    return {"kind": claim.kind, **written}


def claim_from_json(name: str, shape: object) -> Claim:
    """The claim of a JSON form. Its kind must follow from its premises."""
    given = dict(strict_json.check_object(name, shape))
    kind, epsilon = given.pop("kind", None), given.get("epsilon")
    claim: Claim = dataclass_json.from_json(Claim, name, given | ({"epsilon": math.inf} if epsilon == INFINITY else {}))
    if kind != claim.kind:
        raise InvalidValue("kind", allowed=f"{claim.kind}, by its premises", given=kind)
    return claim
