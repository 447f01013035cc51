"""What came out of an attack on a claimed ε: lower bounds on the true one, and whether the claim can be upheld.

>>> proven = LowerBound(epsilon=2.4, delta=1e-5, confidence=0.95, by="Gaussian trade-off")
>>> audit = Audit(subject="dpsgd", game="every step", claimed_epsilon=3.0, delta=1e-5, bounds=(proven,), members=8000,
...     others=8000, runs=1, steps=400, roc=((0.0, 0.0), (1.0, 1.0)))
>>> audit.verdict
<Verdict.NOT_REFUTED: 'not refuted'>
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any

import lehr
from lehr import validate
from lehr.auditing.curves import MOST_POINTS, roc
from lehr.auditing.lower_bound import LowerBound
from lehr.auditing.scores import Scores
from lehr.errors import InvalidValue
from lehr.files import strict_json

FORMAT, FORMAT_VERSION = "lehr audit", 1
NOISE_AS_STATED = "the noise that was seen has the standard deviation that is stated"
# What is tested beside the bound must fail so clearly that it never happens by chance, in thousands of audits.
SUSPICIOUS_BELOW = 1e-6


class Verdict(Enum):
    """What an audit says about a claim. That it holds can never be shown by an attack, only that it was not refuted."""

    NOT_REFUTED = "not refuted"
    SUSPICIOUS = "not refuted, but something is not as it is said to be"  # a check, or another bound
    REFUTED = "refuted"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A statement about what was seen, such as that the noise is as large as it is said to be, and its p-value."""

    statement: str
    p_value: float

    def __post_init__(self) -> None:
        validate.text(statement=self.statement)
        if not validate.non_negative(p_value=self.p_value) <= 1:
            raise InvalidValue("p_value", allowed="a number in [0, 1]", given=self.p_value)

    @property
    def passed(self) -> bool:
        """Whether what was seen can be put down to chance."""
        return self.p_value >= SUSPICIOUS_BELOW


@dataclass(frozen=True, kw_only=True)
class Audit:
    """An attack, what it proves, and what was claimed.

    Canaries are nobody's records, and what is found out about them is public. An attack on the records themselves
    ``is_private``: it tells something about them, without noise, and is for their owner alone.

    The first of the ``bounds`` decides; it was chosen before the game was played, and the others are for comparison.
    ``roc`` has points of a false and a true positive rate. An infinite claim cannot be refuted.
    """

    subject: str
    game: str
    claimed_epsilon: float
    delta: float
    bounds: tuple[LowerBound, ...]
    members: int
    others: int
    runs: int
    steps: int
    roc: tuple[tuple[float, float], ...]
    played_on: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    library_version: str = lehr.__version__
    checks: tuple[Check, ...] = ()
    is_private: bool = False

    def __post_init__(self) -> None:
        validate.true_or_false(is_private=self.is_private)
        for name in ("subject", "game", "library_version"):
            validate.text(**{name: getattr(self, name)})
        if not self.claimed_epsilon >= 0:
            raise InvalidValue("claimed_epsilon", allowed="a number >= 0", given=self.claimed_epsilon)
        validate.delta(delta=self.delta)
        for name in ("members", "others", "runs", "steps"):
            validate.count(minimum=0, **{name: getattr(self, name)})
        if not self.bounds:
            raise InvalidValue("bounds", allowed="one or more, the decisive one first", given=self.bounds)
        if any(bound.delta != self.delta for bound in self.bounds):
            raise InvalidValue("bounds", allowed=f"ones at the claim's delta {self.delta}", given=self.bounds)
        if len(self.roc) > MOST_POINTS:
            raise InvalidValue("roc", allowed=f"at most {MOST_POINTS} points", given=len(self.roc))
        for point in self.roc:
            _a_point(point)
        _a_day(self.played_on)

    @property
    def decisive(self) -> LowerBound:
        """The bound that the verdict rests on."""
        return self.bounds[0]

    @property
    def objections(self) -> tuple[str, ...]:
        """What should hold and does not: checks, and that further bounds which assume nothing are below the claim."""
        failed = [check.statement for check in self.checks if not check.passed]
        above = [bound.by for bound in self.bounds[1:] if not bound.assumes and bound.epsilon > self.claimed_epsilon]
        return (*failed, *(f"the bound by {name}, which assumes nothing, is below the claim" for name in above))

    @property
    def verdict(self) -> Verdict:
        """Whether the claim was refuted."""
        if self.decisive.epsilon > self.claimed_epsilon:
            return Verdict.REFUTED
        return Verdict.SUSPICIOUS if self.objections else Verdict.NOT_REFUTED

    def to_json(self) -> dict[str, object]:
        """As a file has it."""
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self), "verdict": self.verdict.value}


def roc_points(scores: Scores) -> tuple[tuple[float, float], ...]:
    """The ROC of an attack, as an audit has it."""
    curve = roc(scores)
    return tuple(zip(curve.false_positive_rates.tolist(), curve.rates.tolist(), strict=True))


def from_json(shape: object) -> Audit:
    """The audit of a JSON form. What is unknown, missing, or does not follow is refused."""
    own = [field.name for field in fields(Audit)]
    given: dict[str, Any] = strict_json.fields("audit", shape, ["format", "format_version", *own, "verdict"])
    if given["format"] != FORMAT or given["format_version"] != FORMAT_VERSION:
        found = f"{given['format']} {given['format_version']}"
        raise InvalidValue("format", allowed=f"{FORMAT} {FORMAT_VERSION}", given=found)
    try:
        audit = Audit(**{**{name: given[name] for name in own}, **_parts(given)})
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidValue("audit", allowed="as this library writes it", given=str(error)) from error
    if audit.verdict.value != given["verdict"]:
        raise InvalidValue("verdict", allowed=f"{audit.verdict.value}, as follows", given=given["verdict"])
    return audit


def _parts(given: Mapping[str, Any]) -> dict[str, Any]:
    claimed = given["claimed_epsilon"]
    return {
        "claimed_epsilon": float("inf") if claimed == strict_json.INFINITY else float(claimed),
        "bounds": tuple(LowerBound(**{**bound, "assumes": tuple(bound["assumes"])}) for bound in given["bounds"]),
        "checks": tuple(Check(**check) for check in given["checks"]),
        "roc": tuple(tuple(point) for point in given["roc"]),
    }


def _a_point(point: object) -> None:
    allowed = "points of a false and a true positive rate, each in [0, 1]"
    if not isinstance(point, tuple) or len(point) != 2:
        raise InvalidValue("roc", allowed=allowed, given=point)
    for rate in point:
        if not validate.non_negative(roc=rate) <= 1:
            raise InvalidValue("roc", allowed=allowed, given=point)


def _a_day(played_on: object) -> None:
    try:
        date.fromisoformat(validate.text(played_on=played_on))
    except ValueError as error:
        raise InvalidValue("played_on", allowed="a day such as 2026-01-31", given=played_on) from error
