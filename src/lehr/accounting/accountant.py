"""One interface for every accountant, and the rule for choosing among their answers.

>>> from lehr.events import Gaussian, PoissonSampled, Repeated
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
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version as version_of
from types import MappingProxyType
from typing import Protocol

from lehr import validate
from lehr.accounting.gdp import GDP
from lehr.accounting.pld import PLD
from lehr.accounting.rdp import RDP_BALLE20, RDP_MIRONOV17
from lehr.accounting.tan import TAN
from lehr.claims import (
    IDEAL_ARITHMETIC,
    IDEAL_RANDOMNESS,
    SECRET_REPETITIONS,
    TRUE_RECORD_COUNT,
    Claim,
    Premise,
    Standing,
)
from lehr.errors import AccountantFailed, UnsupportedEvent
from lehr.events import (
    Adjacency,
    Event,
    PoissonSampled,
    RenyiLimit,
    RepeatAndSelect,
    SampledWithoutReplacement,
    an_adjacency,
    an_event,
    counted,
)


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
    an_event(event=event)
    delta = validate.delta(delta=delta)
    an_adjacency(adjacency=adjacency)
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
    fixed = Premise(f"{what} fixed before a record was touched", Standing.ASSUMED)
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
