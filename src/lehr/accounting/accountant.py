"""One interface for every accountant, and the rule for choosing among their answers.

>>> from lehr.accounting.events import Gaussian, PoissonSampled, Repeated
>>> run = Repeated(PoissonSampled(512 / 60_000, Gaussian(1.23)), 4698)
>>> smallest = bound(run, delta=1e-5)
>>> f"{smallest.epsilon:.3f}", smallest.accountant
('2.366', 'pld')
>>> for answer in answers(run, delta=1e-5):
...     print(answer.accountant, f"{answer.epsilon:.3f}", "estimate" if answer.is_estimate else "bound")
pld 2.366 bound
rdp-balle20 2.584 bound
rdp-mironov17 3.000 bound
gdp 2.290 estimate
tan 2.395 estimate
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import metadata
from types import MappingProxyType
from typing import Protocol

import lehr
from lehr import validate
from lehr.accounting.claims import (
    CRYPTOGRAPHIC_BITS,
    EXACT_ARITHMETIC,
    EXACT_NOISE,
    IDEAL_ARITHMETIC,
    IDEAL_RANDOMNESS,
    SECRET_REPETITIONS,
    SUMS_ON_A_GPU,
    TRUE_RECORD_COUNT,
    WHOLE_EPOCHS,
    Claim,
    Premise,
    Standing,
)
from lehr.accounting.closed_forms import GDP, TAN
from lehr.accounting.events import (
    Adjacency,
    BallsInBins,
    CorrelatedSteps,
    Event,
    GroupPoissonSampled,
    InverseCorrelatedSteps,
    PoissonSampled,
    RenyiLimit,
    RepeatAndSelect,
    Repeated,
    RoundedGaussian,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
    check_adjacency,
    check_event,
    counted,
)
from lehr.accounting.pld import PLD, PldAccountant
from lehr.accounting.rdp import RDP_BALLE20, RDP_MIRONOV17
from lehr.errors import AccountantFailed, InvalidValue, UnsupportedEvent


class Accountant(Protocol):
    """Turns an event into ε. Two accountants differ in which events they count and how tightly.

    ``is_estimate`` says that its number may lie below the truth; an estimate is shown and never used. ``proof`` is the
    file, below the package, that proves it for this code; none for an estimate.
    """

    @property
    def name(self) -> str: ...

    @property
    def is_estimate(self) -> bool: ...

    @property
    def theorem(self) -> str: ...

    @property
    def proof(self) -> str | None: ...

    def __hash__(self) -> int: ...

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """ε of the event, perhaps infinite; ``UnsupportedEvent`` or ``AccountantFailed`` where it has none."""


ACCOUNTANTS: Mapping[str, Accountant] = MappingProxyType(
    {accountant.name: accountant for accountant in (PLD, RDP_BALLE20, RDP_MIRONOV17, GDP, TAN)}
)


@dataclass(frozen=True, slots=True)
class Answer:
    """ε by one accountant, or the reason why there is none, or why it is not the bound."""

    accountant: str
    epsilon: float | None
    is_estimate: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """The smallest valid ε, which accountant gave it, and why the others were passed over."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    passed_over: tuple[Answer, ...]


def answers(event: Event, *, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> tuple[Answer, ...]:
    """ε by every accountant, in a fixed order, the default one first."""
    check_event(event=event)
    delta = validate.delta(delta=delta)
    check_adjacency(adjacency=adjacency)
    return tuple(_answer(accountant, event, delta, adjacency) for accountant in ACCOUNTANTS.values())


@lru_cache(maxsize=256)  # the plan, the ledger, the certificate and the report ask about the same event
def _answer(accountant: Accountant, event: Event, delta: float, adjacency: Adjacency) -> Answer:
    name, is_estimate = accountant.name, accountant.is_estimate
    try:
        epsilon = accountant.epsilon(event, delta=delta, adjacency=adjacency)
    except (UnsupportedEvent, AccountantFailed) as error:
        return Answer(name, None, is_estimate, error.reason)
    if not epsilon >= 0:
        return Answer(name, None, is_estimate, f"its arithmetic broke down: ε came out as {epsilon}")
    return Answer(name, epsilon, is_estimate)


def bound(event: Event, *, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Bound:
    """The smallest valid ε of all accountants. ``UnsupportedEvent`` where none of them can count the event."""
    return smallest_of(answers(event, delta=delta, adjacency=adjacency), event=event, delta=delta, adjacency=adjacency)


def smallest_of(given: tuple[Answer, ...], *, event: Event, delta: float, adjacency: Adjacency) -> Bound:
    """The same, from answers that are already there."""
    valid = [answer for answer in given if answer.epsilon is not None and not answer.is_estimate]
    if not valid:
        reasons = "; ".join(f"{answer.accountant}: {answer.reason}" for answer in given if answer.epsilon is None)
        raise UnsupportedEvent(accountant="any", event=event, reason=reasons)
    best = min(valid, key=lambda answer: math.inf if answer.epsilon is None else answer.epsilon)
    assert best.epsilon is not None
    others = tuple(_passed_over(answer) for answer in given if answer is not best)
    return Bound(best.epsilon, validate.delta(delta=delta), adjacency, best.accountant, others)


def _passed_over(answer: Answer) -> Answer:
    if answer.epsilon is None:
        return answer
    if answer.is_estimate:
        return replace(answer, reason=f"an estimate ({answer.epsilon:.6g}), not a bound")
    return replace(answer, reason=f"a larger or equal bound, {answer.epsilon:.6g}")


def claim(event: Event, *, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Claim:
    """The proven claim behind ``bound``."""
    smallest = bound(event, delta=delta, adjacency=adjacency)
    accountant = ACCOUNTANTS[smallest.accountant]
    kinds = {type(atom) for atom in _atoms_within(event)}
    what = "the limit was" if RenyiLimit in kinds else "the events were"
    premises = [Premise(f"{what} chosen without looking at the private records", Standing.ASSUMED)]
    if {type(getattr(atom, "event", atom)) for atom in counted(event)} == {RoundedGaussian}:
        premises += [EXACT_ARITHMETIC, EXACT_NOISE, CRYPTOGRAPHIC_BITS, SUMS_ON_A_GPU]
    else:
        premises += [IDEAL_ARITHMETIC, IDEAL_RANDOMNESS]
    theorem = accountant.theorem
    sampled = {PoissonSampled, GroupPoissonSampled, TruncatedPoissonSampled, SampledWithoutReplacement}
    if kinds & {*sampled, CorrelatedSteps, RenyiLimit}:
        premises.append(TRUE_RECORD_COUNT)
    if TruncatedPoissonSampled in kinds:
        premises.append(Premise("there are at most as many records as stated", Standing.ASSUMED))
        theorem += "; batches that are cut at random, as a mixture (accounting/pld.proof.md)"
    if GroupPoissonSampled in kinds:
        premises.append(Premise("no group has more records in the run than stated", Standing.MET))
        theorem += "; groups of records (Charles et al. 2024; accounting/pld.proof.md)"
    if BallsInBins in kinds:
        premises.append(WHOLE_EPOCHS)
        theorem += "; epochs of balls-in-bins sampling (Chua et al. 2024; accounting/balls_in_bins.proof.md)"
    if CorrelatedSteps in kinds:
        theorem += "; banded noise with cyclic sampling (Choquette-Choo et al. 2023; privacy/correlated.proof.md)"
    if InverseCorrelatedSteps in kinds:
        theorem += "; noise with a banded inverse matrix (Kalinin et al. 2025; privacy/correlated.proof.md)"
    if adjacency is Adjacency.ZERO_OUT and kinds & {TruncatedPoissonSampled, SampledWithoutReplacement}:
        theorem += "; records that keep their place and add nothing (accounting/pld.proof.md)"
    if RepeatAndSelect in kinds:
        premises.append(SECRET_REPETITIONS)
        theorem += "; repeated selection (Papernot & Steinke 2022, Theorems 2 and 6)"
    return Claim(
        epsilon=smallest.epsilon,
        delta=delta,
        adjacency=adjacency,
        accountant=accountant.name,
        theorem=theorem,
        premises=tuple(premises),
        proof=accountant.proof,
    )


def _atoms_within(event: Event) -> set[Event]:
    """Every atom, those of what was repeated and selected from included."""
    atoms: set[Event] = set(counted(event))
    return atoms.union(*(_atoms_within(atom.event) for atom in atoms if isinstance(atom, RepeatAndSelect)))


def version() -> str:
    """The versions of everything that a number depends on, for the record."""
    others = (f"{package} {_version_of(package)}" for package in ("dp-accounting", "numpy", "scipy"))
    return ", ".join((f"lehr {lehr.__version__}", *others))


def _version_of(package: str) -> str:
    """A package that was copied without its metadata must not cost a finished run its record."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"


GRID_TOLERANCE = 1e-3
LARGEST_RISE = 1.0035  # of ε between a count and the next one that is computed; in between the next one's ε is given
LOOK_AHEAD = 1.006  # from one count to the next that is tried, when steps are asked for in turn


class EpsilonCurve:
    """ε of the first so many steps of a plan of equal steps: never below the truth, and within 0.5 % of ``bound``.

    It never falls from one step to the next, and at ``largest_steps`` it is exactly ``bound``. Values are computed when
    they are asked for and kept: asking for every step in turn costs about a second in all for a run of a few thousand
    steps, and a few seconds for a million. Where ``step`` is the event of an epoch of ``steps_per_event`` steps, all of
    it is counted from its first step.
    """

    def __init__(
        self,
        step: Event,
        *,
        delta: float,
        largest_steps: int,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
        steps_per_event: int = 1,
    ) -> None:
        self.largest_steps = validate.count(largest_steps=largest_steps)
        self._steps_per_event = validate.count(steps_per_event=steps_per_event)
        self._most = math.ceil(self.largest_steps / self._steps_per_event)
        whole = bound(Repeated(step, self._most), delta=delta, adjacency=adjacency)
        self._known: dict[int, float] = {0: 0.0, self._most: whole.epsilon}
        self._counts = sorted(self._known)
        self._ranges: dict[int, Callable[[int], float]] = {}  # of powers of two; the counts of one share a transform
        pld = PldAccountant(tolerance=GRID_TOLERANCE)
        self._pld = partial(pld.repeated, step, delta=whole.delta, adjacency=adjacency)
        self._renyi = _countable(partial(RDP_BALLE20.repeated, step, delta=whole.delta, adjacency=adjacency))

    def at(self, steps: int) -> float:
        """An upper bound on ε after so many steps, perhaps that of a few steps more."""
        steps = self._event_count(steps)
        index = bisect_left(self._counts, steps)
        above, below = self._counts[index], self._counts[max(index - 1, 0)]
        if above != steps and not self._known[above] <= LARGEST_RISE * self._known[below]:
            above = max(steps, math.floor(below * LOOK_AHEAD))
            while above > steps and not self._epsilon(above) <= LARGEST_RISE * self._known[below]:
                above = (steps + above) // 2
        return self._epsilon(above)

    def drawn_at(self, steps: int) -> float:
        """The same, but of this very count: a chart of few points then has no flat spots."""
        return self._epsilon(self._event_count(steps))

    def _event_count(self, steps: int) -> int:
        if not validate.count(minimum=0, steps=steps) <= self.largest_steps:
            raise InvalidValue("steps", allowed=f"at most {self.largest_steps}", given=steps)
        return math.ceil(steps / self._steps_per_event)

    def _epsilon(self, steps: int) -> float:
        if steps not in self._known:
            fewest = 1 << (steps.bit_length() - 1)
            if fewest not in self._ranges:
                most = min(2 * fewest, self._most)
                self._ranges[fewest] = _countable(partial(self._pld, fewest=fewest, most=most))
            epsilon = min(self._ranges[fewest](steps), self._renyi(steps))
            # Two grids may differ by their tolerance; ε never falls, so the larger neighbour's value is a bound too.
            index = bisect_left(self._counts, steps)
            smaller, larger = self._counts[index - 1], self._counts[index]
            self._known[steps] = min(max(epsilon, self._known[smaller]), self._known[larger])
            self._counts.insert(index, steps)
        return self._known[steps]


def _countable(make: Callable[[], Callable[[int], float]]) -> Callable[[int], float]:
    """An accountant that cannot count the step drops out; ``bound`` has made sure that one can."""
    try:
        return make()
    except (UnsupportedEvent, AccountantFailed):
        return lambda steps: math.inf
