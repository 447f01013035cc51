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
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version as version_of
from types import MappingProxyType
from typing import Protocol

from lehr import validate
from lehr.accounting.claims import (
    IDEAL_ARITHMETIC,
    IDEAL_RANDOMNESS,
    SECRET_REPETITIONS,
    TRUE_RECORD_COUNT,
    Claim,
    Premise,
    Standing,
)
from lehr.accounting.closed_forms import GDP, TAN
from lehr.accounting.events import (
    Adjacency,
    Event,
    PoissonSampled,
    RenyiLimit,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
    check_adjacency,
    check_event,
    counted,
)
from lehr.accounting.pld import PLD, PldAccountant
from lehr.accounting.rdp import RDP_BALLE20, RDP_MIRONOV17
from lehr.errors import AccountantFailed, InvalidValue, UnsupportedEvent


class Accountant(Protocol):
    """Turns an event into ε. Two accountants differ in which events they count and how tightly."""

    @property
    def name(self) -> str:
        """The word that picks it."""

    @property
    def is_estimate(self) -> bool:
        """Whether its number may lie below the truth. An estimate is shown and never used."""

    @property
    def theorem(self) -> str:
        """What its number rests on."""

    @property
    def proof(self) -> str | None:
        """The file, below the package, that proves it for this code; none for an estimate."""

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """ε of the event, perhaps infinite; ``UnsupportedEvent`` or ``AccountantFailed`` where it has none."""


ACCOUNTANTS: Mapping[str, Accountant] = MappingProxyType(
    {accountant.name: accountant for accountant in (PLD, RDP_BALLE20, RDP_MIRONOV17, GDP, TAN)}
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one accountant says: a number, or the reason why there is none."""

    accountant: str
    epsilon: float | None
    is_estimate: bool
    reason: str


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An accountant whose answer was not taken, and why."""

    accountant: str
    reason: str


@dataclass(frozen=True, slots=True)
class Bound:
    """The smallest valid ε, which accountant gave it, and why the others were passed over."""

    epsilon: float
    delta: float
    adjacency: Adjacency
    accountant: str
    passed_over: tuple[PassedOver, ...]


def answers(event: Event, *, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> tuple[Answer, ...]:
    """ε by every accountant, in a fixed order, the default one first."""
    check_event(event=event)
    delta = validate.delta(delta=delta)
    check_adjacency(adjacency=adjacency)
    return tuple(_answer(accountant, event, delta, adjacency) for accountant in ACCOUNTANTS.values())


def bound(event: Event, *, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Bound:
    """The smallest valid ε of all accountants. ``UnsupportedEvent`` where none of them can count the event."""
    return smallest_of(answers(event, delta=delta, adjacency=adjacency), event=event, delta=delta, adjacency=adjacency)


def smallest_of(given: tuple[Answer, ...], *, event: Event, delta: float, adjacency: Adjacency) -> Bound:
    """The same, from answers that are already there."""
    valid = [answer for answer in given if answer.epsilon is not None and not answer.is_estimate]
    if not valid:
        raise UnsupportedEvent(accountant="any", event=event, reason=_reasons(given))
    best = min(valid, key=lambda answer: math.inf if answer.epsilon is None else answer.epsilon)
    assert best.epsilon is not None
    others = tuple(PassedOver(answer.accountant, _why_not(answer)) for answer in given if answer is not best)
    return Bound(best.epsilon, validate.delta(delta=delta), adjacency, best.accountant, others)


def claim(event: Event, *, delta: float, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Claim:
    """The proven claim behind ``bound``."""
    smallest = bound(event, delta=delta, adjacency=adjacency)
    accountant = ACCOUNTANTS[smallest.accountant]
    return Claim(
        epsilon=smallest.epsilon,
        delta=delta,
        adjacency=adjacency,
        accountant=accountant.name,
        theorem=_theorem(accountant, event),
        premises=_premises(event),
        proof=accountant.proof,
    )


def version() -> str:
    """The versions of everything that a number depends on, for the record."""
    return ", ".join(f"{package} {version_of(package)}" for package in ("lehr", "dp-accounting", "numpy", "scipy"))


def _theorem(accountant: Accountant, event: Event) -> str:
    if not any(isinstance(atom, RepeatAndSelect) for atom in counted(event)):
        return accountant.theorem
    return f"{accountant.theorem}; repeated selection (Papernot & Steinke 2022, Theorems 2 and 6)"


def _premises(event: Event) -> tuple[Premise, ...]:
    atoms = _atoms_within(event)
    is_limited = any(isinstance(atom, RenyiLimit) for atom in atoms)
    what = "the limit was" if is_limited else "the events were"
    fixed = Premise(f"{what} chosen without looking at the private records", Standing.ASSUMED)
    premises = [fixed, IDEAL_ARITHMETIC, IDEAL_RANDOMNESS]
    if any(isinstance(atom, PoissonSampled | SampledWithoutReplacement | RenyiLimit) for atom in atoms):
        premises.append(TRUE_RECORD_COUNT)
    if any(isinstance(atom, RepeatAndSelect) for atom in atoms):
        premises.append(SECRET_REPETITIONS)
    return tuple(premises)


def _atoms_within(event: Event) -> set[Event]:
    """Every atom, those of what was repeated and selected from included."""
    found: set[Event] = set(counted(event))
    inner = [_atoms_within(atom.event) for atom in found if isinstance(atom, RepeatAndSelect)]
    return found.union(*inner)


def _answer(accountant: Accountant, event: Event, delta: float, adjacency: Adjacency) -> Answer:
    try:
        epsilon = accountant.epsilon(event, delta=delta, adjacency=adjacency)
    except (UnsupportedEvent, AccountantFailed) as error:
        return Answer(accountant.name, None, accountant.is_estimate, error.reason)
    if not epsilon >= 0:
        return Answer(
            accountant.name, None, accountant.is_estimate, f"its arithmetic broke down: ε came out as {epsilon}"
        )
    return Answer(accountant.name, epsilon, accountant.is_estimate, "")


def _why_not(answer: Answer) -> str:
    if answer.epsilon is None:
        return answer.reason
    if answer.is_estimate:
        return f"an estimate ({answer.epsilon:.6g}), not a bound"
    return f"a larger or equal bound, {answer.epsilon:.6g}"


def _reasons(given: tuple[Answer, ...]) -> str:
    return "; ".join(f"{answer.accountant}: {answer.reason}" for answer in given if answer.epsilon is None)


GRID_TOLERANCE = 1e-3
LARGEST_RISE = 1.0035  # of ε between a count and the next one that is computed; in between the next one's ε is given
LOOK_AHEAD = 1.006  # from one count to the next that is tried, when steps are asked for in turn
RANGE_RATIO = 2.0  # of step counts that share one transform


class EpsilonCurve:
    """ε of the first so many steps of a plan of equal steps: never below the truth, and within 0.5 % of ``bound``.

    It never falls from one step to the next, and at ``largest_steps`` it is exactly ``bound``. Values are computed when
    they are asked for and kept: asking for every step in turn costs about a second in all for a run of a few thousand
    steps, and a few seconds for a million.
    """

    def __init__(
        self,
        step: Event,
        *,
        delta: float,
        largest_steps: int,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    ) -> None:
        self.step, self.delta, self.adjacency = step, validate.delta(delta=delta), adjacency
        self.largest_steps = validate.count(largest_steps=largest_steps)
        whole = Repeated(step, self.largest_steps)
        self._largest_epsilon = bound(whole, delta=self.delta, adjacency=adjacency).epsilon
        self._known: dict[int, float] = {0: 0.0, self.largest_steps: self._largest_epsilon}
        self._counts = sorted(self._known)
        self._ranges: dict[int, Callable[[int], float]] = {}
        self._renyi = self._countable(lambda: RDP_BALLE20.repeated(step, delta=self.delta, adjacency=adjacency))

    def at(self, steps: int) -> float:
        """An upper bound on ε after so many steps, perhaps that of a few steps more."""
        self._refuse_outside(steps)
        place = bisect_left(self._counts, steps)
        above, below = self._counts[place], self._counts[max(place - 1, 0)]
        if above != steps and not self._known[above] <= LARGEST_RISE * self._known[below]:
            above = max(steps, math.floor(below * LOOK_AHEAD))
            while above > steps and not self._epsilon(above) <= LARGEST_RISE * self._known[below]:
                above = (steps + above) // 2
        return self._epsilon(above)

    def drawn_at(self, steps: int) -> float:
        """The same, but of this very count: a chart of few points then has no flat spots."""
        self._refuse_outside(steps)
        return self._epsilon(steps)

    def _refuse_outside(self, steps: int) -> None:
        if not validate.count(minimum=0, steps=steps) <= self.largest_steps:
            raise InvalidValue("steps", allowed=f"at most {self.largest_steps}", given=steps)

    def _epsilon(self, steps: int) -> float:
        if steps not in self._known:
            range_index = math.floor(math.log(steps) / math.log(RANGE_RATIO))
            if range_index not in self._ranges:
                self._ranges[range_index] = self._range(range_index)
            found = min(self._ranges[range_index](steps), self._renyi(steps))
            insort(self._counts, steps)
            self._known[steps] = self._in_order(steps, found)
        return self._known[steps]

    def _in_order(self, steps: int, found: float) -> float:
        """Two grids may differ by their tolerance; ε never falls, so the larger neighbour's value is a bound too."""
        place = bisect_left(self._counts, steps)
        smaller, larger = self._counts[place - 1], self._counts[place + 1]
        return min(max(found, self._known[smaller]), self._known[larger])

    def _range(self, index: int) -> Callable[[int], float]:
        fewest = max(math.floor(RANGE_RATIO**index), 1)
        most = max(min(math.ceil(RANGE_RATIO ** (index + 1)), self.largest_steps), fewest)
        accountant = PldAccountant(tolerance=GRID_TOLERANCE)
        return self._countable(
            lambda: accountant.repeated(self.step, delta=self.delta, adjacency=self.adjacency, fewest=fewest, most=most)
        )

    @staticmethod
    def _countable(make: Callable[[], Callable[[int], float]]) -> Callable[[int], float]:
        """An accountant that cannot count the step drops out; ``bound`` has made sure that one can."""
        try:
            return make()
        except (UnsupportedEvent, AccountantFailed):
            return lambda steps: math.inf
