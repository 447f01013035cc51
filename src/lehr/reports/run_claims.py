"""The two numbers of a run: what is proven about it, and what its paper's rule says. Which is which is always said.

>>> from lehr.claims import Claim, Premise, Standing
>>> from lehr.events import Adjacency
>>> rule = Premise("Theorem 1", Standing.BROKEN, because="rejected steps cost something too")
>>> claim = Claim(3.0, 1e-5, Adjacency.ADD_OR_REMOVE_ONE, "rdp-mironov17", "a paper: Theorem 1", (rule,), None)
>>> as_published(claim)
'3 — not a guarantee: rejected steps cost something too'
>>> from_json("published", to_json(claim)) == claim
True
"""

from __future__ import annotations

import math

from lehr import validate
from lehr.claims import Claim, Premise, Standing
from lehr.errors import InvalidValue
from lehr.events import Adjacency
from lehr.files import strict_json
from lehr.reports.rounding import at_most, rounded_up
from lehr.run_shape import INFINITY

DIGITS = 8  # coarser than what two machines may differ by: a run is resumed where its configuration is the same
_FIELDS = ("kind", "epsilon", "delta", "adjacency", "accountant", "theorem", "premises", "proof")


def because(claim: Claim) -> str:
    """Why a published claim is no guarantee, and where that is shown; nothing where it is one."""
    return "; ".join(premise.because for premise in claim.broken)


def as_published(claim: Claim) -> str:
    """The ε of a paper's rule with what it is worth, for a line that says ``as published`` before it."""
    if claim.is_proven:
        return f"{at_most(claim.epsilon)} by {claim.theorem}; this rule is proven too"
    return f"{at_most(claim.epsilon)} — not a guarantee: {because(claim)}"


def summary(claim: Claim | None) -> dict[str, object] | None:
    """What a program is told of a claim."""
    if claim is None:
        return None
    return {
        "kind": claim.kind,
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "accountant": claim.accountant,
        "theorem": claim.theorem,
        "not_a_guarantee_because": because(claim) or None,
    }


def to_json(claim: Claim) -> dict[str, object]:
    """The JSON form, for ``config.json``. Infinity, which JSON has no number for, is a word."""
    epsilon = rounded_up(claim.epsilon, digits=DIGITS)
    return {
        "kind": claim.kind,
        "epsilon": INFINITY if epsilon == math.inf else epsilon,
        "delta": claim.delta,
        "adjacency": claim.adjacency.value,
        "accountant": claim.accountant,
        "theorem": claim.theorem,
        "premises": [
            {"statement": premise.statement, "standing": premise.standing.value, "because": premise.because}
            for premise in claim.premises
        ],
        "proof": claim.proof,
    }


def from_json(name: str, shape: object) -> Claim:
    """The claim of a JSON form. Its kind is not believed: it follows from its premises."""
    given = strict_json.fields(name, shape, _FIELDS)
    adjacencies = {member.value: member for member in Adjacency}
    epsilon = math.inf if given["epsilon"] == INFINITY else validate.non_negative(epsilon=given["epsilon"])
    claim = Claim(
        epsilon=epsilon,
        delta=validate.delta(delta=given["delta"]),
        adjacency=adjacencies[validate.one_of(adjacencies, adjacency=given["adjacency"])],
        accountant=validate.text(accountant=given["accountant"]),
        theorem=validate.text(theorem=given["theorem"]),
        premises=tuple(strict_json.list_of("premises", given["premises"], _premise)),
        proof=None if given["proof"] is None else validate.text(proof=given["proof"]),
    )
    if given["kind"] != claim.kind:
        raise InvalidValue("kind", allowed=f"{claim.kind}, by its premises", given=given["kind"])
    return claim


def _premise(shape: object) -> Premise:
    given = strict_json.fields("premise", shape, ("statement", "standing", "because"))
    standings = {member.value: member for member in Standing}
    said = given["because"]
    if not isinstance(said, str):
        raise InvalidValue("because", allowed="a string", given=said)
    standing = standings[validate.one_of(standings, standing=given["standing"])]
    return Premise(validate.text(statement=given["statement"]), standing, because=said)
