"""The outcome of an attack: lower bounds on ε, a verdict on the claimed one, the ROC curve, and all of it in words.

>>> proven = LowerBound(epsilon=2.69, delta=1e-5, confidence=0.95, by="Gaussian trade-off")
>>> audit = Audit(subject="dpsgd", attack="every step", claimed_epsilon=3.0, delta=1e-5, bounds=(proven,), members=8000,
...     others=8000, runs=1, steps=400, roc=((0.0, 0.0), (1.0, 1.0)), audited_on="2026-01-31")
>>> audit.verdict, verdict_text(audit), share_of_claim(audit)
(<Verdict.NOT_REFUTED: 'not refuted'>, 'not refuted', '89 %')
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, date, datetime
from decimal import ROUND_FLOOR, Decimal
from enum import Enum
from typing import Any

import numpy as np

import lehr
from lehr import validate
from lehr.auditing.bounds import LowerBound, check_delta
from lehr.auditing.scores import Floats, Scores, errors_above
from lehr.auditing.thresholds import spread_ranks
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.rounding import at_least, at_most, exactly

FORMAT, FORMAT_VERSION = "lehr audit", 2
NOISE_AS_STATED = "the observed noise has the stated standard deviation"
NO_GUARANTEE = "An attack can refute a guarantee but never prove one."
# A check must fail so clearly that this never happens by chance, in thousands of audits.
SUSPICIOUS_BELOW = 1e-6
MOST_POINTS = 200  # of a curve

_SMALLEST_RATE = 1e-6
_LARGEST_EXPONENT = 700.0


class Verdict(Enum):
    """What an audit says about a claim. An attack can only refute a claim, never confirm it."""

    NOT_REFUTED = "not refuted"
    SUSPICIOUS = "not refuted, but a check failed"  # a statistical check, or another bound
    REFUTED = "refuted"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A statement about what was observed, such as that the noise is as large as stated, and its p-value."""

    statement: str
    p_value: float

    def __post_init__(self) -> None:
        validate.text(statement=self.statement)
        if not validate.non_negative(p_value=self.p_value) <= 1:
            raise InvalidValue("p_value", allowed="a number in [0, 1]", given=self.p_value)

    @property
    def passed(self) -> bool:
        return self.p_value >= SUSPICIOUS_BELOW


@dataclass(frozen=True, kw_only=True)
class Audit:
    """An attack, what it proves, and what was claimed.

    Canaries are made-up records, so an audit with canaries is public. An attack on the records themselves
    ``is_private``: it reveals something about them, without noise, and is for their owner alone.

    The first of the ``bounds`` decides; it was chosen before the attack, and the others are for comparison.
    ``roc`` holds (false positive rate, true positive rate) points. An infinite claim cannot be refuted.
    """

    subject: str
    attack: str
    claimed_epsilon: float
    delta: float
    bounds: tuple[LowerBound, ...]
    members: int
    others: int
    runs: int
    steps: int
    roc: tuple[tuple[float, float], ...]
    audited_on: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    library_version: str = lehr.__version__
    checks: tuple[Check, ...] = ()
    is_private: bool = False

    def __post_init__(self) -> None:
        validate.true_or_false(is_private=self.is_private)
        for name in ("subject", "attack", "library_version"):
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
        _check_roc(self.roc)
        try:
            date.fromisoformat(validate.text(audited_on=self.audited_on))
        except ValueError as error:
            raise InvalidValue("audited_on", allowed="a day such as 2026-01-31", given=self.audited_on) from error

    @property
    def decisive(self) -> LowerBound:
        """The bound that the verdict rests on."""
        return self.bounds[0]

    @property
    def objections(self) -> tuple[str, ...]:
        """Failed checks, and further bounds without assumptions that are above the claim."""
        failed = [check.statement for check in self.checks if not check.passed]
        above = [bound.by for bound in self.bounds[1:] if not bound.assumes and bound.epsilon > self.claimed_epsilon]
        return (*failed, *(f"the bound by {name}, which assumes nothing, is below the claim" for name in above))

    @property
    def verdict(self) -> Verdict:
        if self.decisive.epsilon > self.claimed_epsilon:
            return Verdict.REFUTED
        return Verdict.SUSPICIOUS if self.objections else Verdict.NOT_REFUTED

    def to_json(self) -> dict[str, object]:
        return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self), "verdict": self.verdict.value}


def from_json(shape: object) -> Audit:
    """The audit of a JSON form. Unknown or missing fields, and a verdict that does not follow, are refused."""
    names = [field.name for field in fields(Audit)]
    given: dict[str, Any] = dict(strict_json.fields("audit", shape, ["format", "format_version", *names, "verdict"]))
    found = f"{given.pop('format')} {given.pop('format_version')}"
    if found != f"{FORMAT} {FORMAT_VERSION}":
        raise InvalidValue("format", allowed=f"{FORMAT} {FORMAT_VERSION}", given=found)
    verdict = given.pop("verdict")
    try:
        given["claimed_epsilon"] = float(str(given["claimed_epsilon"]))  # strict_json writes infinity as a word
        given["bounds"] = tuple(LowerBound(**bound | {"assumes": tuple(bound["assumes"])}) for bound in given["bounds"])
        given["checks"] = tuple(Check(**check) for check in given["checks"])
        given["roc"] = tuple(tuple(point) for point in given["roc"])
        audit = Audit(**given)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidValue("audit", allowed="as this library writes it", given=str(error)) from error
    if audit.verdict.value != verdict:
        raise InvalidValue("verdict", allowed=f"{audit.verdict.value}, as follows", given=verdict)
    return audit


def _check_roc(roc: tuple[object, ...]) -> None:
    allowed = f"at most {MOST_POINTS} points of a false and a true positive rate, each in [0, 1]"
    if len(roc) > MOST_POINTS:
        raise InvalidValue("roc", allowed=allowed, given=f"{len(roc)} points")
    for point in roc:
        is_pair = isinstance(point, tuple) and len(point) == 2
        if not is_pair or not all(validate.non_negative(roc=rate) <= 1 for rate in point):  # type: ignore[attr-defined]
            raise InvalidValue("roc", allowed=allowed, given=point)


# Curves, for pictures: what they certify is for the bounds to say.


def roc_points(scores: Scores) -> tuple[tuple[float, float], ...]:
    """(False positive rate, true positive rate) at thresholds from above all scores to below, at most 200 points.

    >>> roc_points(Scores(members=[1.0, 3.0], others=[0.0, 2.0]))
    ((0.0, 0.0), (0.0, 0.5), (0.5, 0.5), (0.5, 1.0), (1.0, 1.0))
    """
    every = np.unique(np.concatenate([scores.members, scores.others]))
    errors = errors_above(scores, every[spread_ranks(len(every), at_most=MOST_POINTS - 1)][::-1])
    positives = errors.false_positives / errors.num_others
    rates = 1 - errors.false_negatives / errors.num_members
    # Even the smallest score is not above itself: the attack that calls everything a member comes last.
    return (*zip(positives.tolist(), rates.tolist(), strict=True), (1.0, 1.0))


def allowed_tradeoff(epsilon: float, delta: float) -> tuple[Floats, Floats]:
    """False positive rates, and the smallest false negative rates that (ε, δ) allows; ε may be infinite.

    (Kairouz, Oh & Viswanath 2015)
    """
    check_delta(delta=delta)
    if epsilon != math.inf:
        validate.non_negative(epsilon=epsilon)
    factor = math.exp(min(epsilon, _LARGEST_EXPONENT))
    corners = np.array([0, (1 - delta) / (1 + factor), 1 - delta, 1])
    even, towards_zero = np.linspace(0, 1, MOST_POINTS // 2), np.geomspace(_SMALLEST_RATE, 1, MOST_POINTS // 2 - 4)
    positives = np.unique(np.concatenate([corners, even, towards_zero]))
    negatives = np.maximum(1 - delta - factor * positives, (1 - delta - positives) / factor)
    return positives, np.maximum(negatives, 0.0)


# The audit in words.


def verdict_text(audit: Audit) -> str:
    """The verdict in a word or two, for a column."""
    loud = {Verdict.REFUTED: "REFUTED", Verdict.SUSPICIOUS: "SUSPICIOUS"}
    return loud.get(audit.verdict, "not refuted")


def claimed_text(audit: Audit) -> str:
    """The claim, rounded up."""
    return f"ε = {at_most(audit.claimed_epsilon)} at δ = {exactly(audit.delta)}"


def certified_text(audit: Audit) -> str:
    """What the attack shows, rounded down."""
    shown = audit.decisive
    return f"ε ≥ {at_least(shown.epsilon)} with {percent(shown.confidence)} confidence"


def explanation(audit: Audit) -> Iterator[str]:
    """The verdict in full sentences: what it says, and what it does not say."""
    shown = audit.decisive
    found = f"with {percent(shown.confidence)} confidence, the true ε is at least {at_least(shown.epsilon)}"
    claim = claimed_text(audit)
    if audit.verdict is Verdict.REFUTED:
        yield f"REFUTED. {found[0].upper()}{found[1:]}, but {claim} is claimed."
        yield "The implementation does not do what the proof assumes. Do not rely on the claim."
        return
    if audit.verdict is Verdict.SUSPICIOUS:
        broken = "; ".join(audit.objections)
        yield f"SUSPICIOUS. The claim of {claim} is not refuted, but this does not hold: {broken}."
        yield "Do not rely on the claim before you know why."
    elif shown.epsilon > 0:
        yield f"Not refuted. The claim is {claim}; {found}: {share_of_claim(audit)} of the claim."
    else:
        yield f"Not refuted. The claim is {claim}, and the attack certifies no ε above 0."
    yield NO_GUARANTEE


def share_of_claim(audit: Audit) -> str:
    """How much of the claimed ε was certified, rounded down: near 100 %, the claim is tight."""
    if not 0 < audit.claimed_epsilon < math.inf:
        return "–"
    return f"{math.floor(100 * audit.decisive.epsilon / audit.claimed_epsilon)} %"


def setup_text(audit: Audit) -> str:
    """How many records were attacked, in how many runs, and when."""
    kind = "records" if audit.is_private else "canaries"
    there = f"{audit.members:,} {kind} that were in the data and {audit.others:,} that were not"
    return f"{there}{runs_text(audit)}, on {audit.audited_on}"


def runs_text(audit: Audit) -> str:
    """ ", in one run of 400 steps"; empty where no step of any run was observed."""
    runs = "one run" if audit.runs == 1 else f"{audit.runs} runs"
    return f", in {runs} of {audit.steps:,} steps" if audit.steps else ""


def assumptions_text(bound: LowerBound) -> str:
    return "; ".join(bound.assumes) or "nothing about the mechanism"


def percent(fraction: float) -> str:
    """A confidence in percent, rounded down.

    >>> percent(0.95), percent(0.999), percent(0.29)
    ('95 %', '99.9 %', '29 %')
    """
    shown = (100 * Decimal(repr(fraction))).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR).normalize()
    return f"{shown:f} %"
