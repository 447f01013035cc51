"""What is claimed about a run, on which theorem it rests, and which of its premises this code meets.

A claim is ``proven`` where every premise is met by the code or named as assumed; it is ``published`` where it follows a
paper's own rule whose premises do not hold. Only proven claims stop a run, fill a budget or sign a certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lehr import validate
from lehr.accounting.events import Adjacency
from lehr.errors import InvalidValue
from lehr.rounding import at_most, exactly


class Standing(Enum):
    """How a premise stands."""

    MET = "met"  # by this code; a proof and a test say so
    ASSUMED = "assumed"  # cannot be met by any code, or is the user's word; named in every certificate
    BROKEN = "broken"  # does not hold; the claim is then a published one, not a guarantee


@dataclass(frozen=True, slots=True)
class Premise:
    """One condition of a theorem, and how it stands in this code."""

    statement: str
    standing: Standing
    because: str = ""

    def __post_init__(self) -> None:
        validate.text(statement=self.statement)
        if self.standing is Standing.BROKEN:
            validate.text(because=self.because)


IDEAL_ARITHMETIC = Premise("sums and noise are real numbers, not floating point", Standing.ASSUMED)
IDEAL_RANDOMNESS = Premise("the random bits are independent and uniform", Standing.ASSUMED)
# The same two where all noise is RoundedGaussian.
EXACT_ARITHMETIC = Premise(
    IDEAL_ARITHMETIC.statement,
    Standing.MET,
    because="noise is an exact integer, and the rounding of sums is part of their sensitivity: privacy/noise.proof.md",
)
EXACT_NOISE = Premise(
    "the noise follows its law exactly where its bits are independent and uniform",
    Standing.MET,
    because="it is decided by integers: privacy/rounded_normal.proof.md",
)
CRYPTOGRAPHIC_BITS = Premise(
    "nobody can tell the bits of SHAKE-128, and on a GPU of ChaCha20, under secret keys from independent uniform ones",
    Standing.ASSUMED,
)
SUMS_ON_A_GPU = Premise(
    "where sums over records are computed on a GPU, they are rounded by no more than the margin that is charged",
    Standing.ASSUMED,
)
TRUE_RECORD_COUNT = Premise(
    "the stated number of records is public, and the sampling rate follows from it", Standing.ASSUMED
)
WHOLE_EPOCHS = Premise(
    "the steps of an epoch share one assignment of records to steps, and a later epoch has another", Standing.ASSUMED
)
# What gradients/record_axis.py proves of a model rests on this.
RECORDS_APART = Premise(
    "the code of model and loss keeps nothing from one batch to the next and does the same when it is traced; in a "
    "loop of the user's own, the loss is the mean or the sum of one loss per record, and packed sequences, which are "
    "only tried on made-up records, keep records apart",
    Standing.ASSUMED,
)
SECRET_REPETITIONS = Premise(
    "the repetitions were independent, their number was drawn from its law, and nothing but the best was shown",
    Standing.ASSUMED,
)


@dataclass(frozen=True, slots=True, repr=False)
class Claim:
    """An (ε, δ) with its theorem, its premises and the file that proves it for this code."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    theorem: str
    premises: tuple[Premise, ...]
    proof: str | None
    is_estimate: bool = False

    def __post_init__(self) -> None:
        if not self.epsilon >= 0:  # infinity is a legal answer, NaN is not
            raise InvalidValue("epsilon", allowed="a number >= 0 or infinity", given=self.epsilon)
        validate.delta(delta=self.delta)
        if self.is_proven and self.proof is None:
            raise InvalidValue("proof", allowed="the path of a proof file where a claim is proven", given=None)

    def __repr__(self) -> str:
        at = f"at δ = {exactly(self.delta)}, {self.adjacency.value}"
        return f"<{self.kind} ε = {at_most(self.epsilon)} {at}, by {self.accountant}>"

    @property
    def is_proven(self) -> bool:
        """No premise is broken, and the number is a bound rather than an estimate."""
        return not self.is_estimate and not self.broken

    @property
    def broken(self) -> tuple[Premise, ...]:
        """The premises that do not hold: the reasons why a published claim is no guarantee."""
        return tuple(premise for premise in self.premises if premise.standing is Standing.BROKEN)

    @property
    def kind(self) -> str:
        """``proven``, ``published`` or ``estimate``."""
        if self.is_estimate:
            return "estimate"
        return "proven" if self.is_proven else "published"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRule:
    """How a paper counts its own method. Where it is broken, ``because`` says why, and ``shown_in`` shows that.

    ``counts_accepted_only``: candidates that were not accepted are left out of the count.
    """

    paper: str
    theorem: str
    accountant: str = "rdp-mironov17"
    because: str = ""
    shown_in: str = ""
    counts_accepted_only: bool = False

    def __post_init__(self) -> None:
        if self.because:
            validate.text(shown_in=self.shown_in)
        if self.counts_accepted_only and not self.because:
            allowed = "given where candidates that were not accepted are left out: that is no guarantee"
            raise InvalidValue("because", allowed=allowed, given=self.because)

    @property
    def is_broken(self) -> bool:
        return bool(self.because)


def published_rule(rule: PublishedRule, accounting: object) -> PublishedRule | None:
    """The rule, if the run is accounted for as published; None for what is proven. Other words are refused."""
    return rule if validate.one_of(("proven", "published"), accounting=accounting) == "published" else None
