"""What the steps of a loop have cost: in memory and, where a folder is given, on the disk before each step.

>>> from lehr.events import Gaussian
>>> spending = Spending()
>>> spending.charge(PoissonSampled(0.01, Gaussian(1.0)))
>>> print(spending.charged())
PoissonSampled(sampling_probability=0.01, Gaussian(noise_multiplier=1))
"""

from __future__ import annotations

from pathlib import Path

from lehr import validate
from lehr.errors import BudgetExceeded, InvalidValue, StoreError
from lehr.events import NOTHING, Adjacency, Atom, Event, NonPrivate, PoissonSampled, Repeated, composed, together
from lehr.ledger import Ledger

# A ledger needs a plan, and a loop without one may take any number of steps: so many that none comes near.
OPEN_END = 10**9
# Steps that are charged on the disk at once, so that a fast step does not wait for it. What a crash leaves unused of
# them stays charged.
BLOCK = 32


class Spending:
    """The account of one engine. A folder may have been used before: what its ledgers say was spent before.

    Every process, and every kind of step, has a ledger of its own; the folder's spending is that of all together.
    """

    def __init__(self, *, folder: str | Path | None = None, delta: float | None = None) -> None:
        self._counts: dict[Atom, int] = {}
        self._ledgers: dict[Atom, _Reserved] = {}
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None:
            if delta is None:
                raise InvalidValue("delta", allowed="a number in (0, 1) where a folder keeps ledgers", given=None)
            self._delta = validate.delta(delta=delta)
            self._folder.mkdir(parents=True, exist_ok=True)
        self.before: Event = NOTHING if self._folder is None else _charged_in(self._folder)

    def charge(self, event: PoissonSampled, *, unproven: str | None = None) -> None:
        """Charge one step; when this returns, it is paid for. What is unproven is charged as not private at all."""
        charged: Atom = event if unproven is None else NonPrivate(unproven)
        if self._folder is not None:
            if charged not in self._ledgers:
                self._ledgers[charged] = _Reserved(self._folder, charged, delta=self._delta)
            self._ledgers[charged].use_one()
        self._counts[charged] = self._counts.get(charged, 0) + 1

    def charged(self) -> Event:
        """Everything: what the folder had before, and every step since."""
        return together(self.before, composed(self._counts))

    def close(self) -> None:
        """Let go of the ledgers."""
        for ledger in self._ledgers.values():
            ledger.close()
        self._ledgers.clear()


class Allowed:
    """Charges steps of one kind, as many as were planned, and refuses the next."""

    def __init__(self, event: PoissonSampled, *, steps: int) -> None:
        self.event, self.steps, self.used = event, validate.count(steps=steps), 0

    def take(self, event: PoissonSampled) -> None:
        if event != self.event:
            allowed = f"that of the plan, {self.event}: its ε was promised"
            raise InvalidValue("step", allowed=allowed, given=str(event))
        if self.used >= self.steps:
            raise BudgetExceeded(
                f"all {self.steps} steps that the target ε was planned for are taken; one more would pass it "
                "(for more steps state more epochs, or use make_private with a noise multiplier)"
            )
        self.used += 1


class _Reserved:
    """A ledger of one kind of step, charged in blocks."""

    def __init__(self, folder: Path, atom: Atom, *, delta: float) -> None:
        self._atom = atom
        self._left = 0
        path = _next_path(folder)
        self._ledger = Ledger.create(
            path,
            run=path.stem,
            plan_event=Repeated(atom, OPEN_END),
            delta=delta,
            adjacency=Adjacency.ADD_OR_REMOVE_ONE,
        )

    def use_one(self) -> None:
        if not self._left:
            self._ledger.record(Repeated(self._atom, BLOCK), counts={"steps": BLOCK})
            self._left = BLOCK
        self._left -= 1

    def close(self) -> None:
        self._ledger.close()


def _paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("steps-*.ledger"))


def _next_path(folder: Path) -> Path:
    for number in range(1, OPEN_END):
        path = folder / f"steps-{number:04d}.ledger"
        if not path.exists():
            return path
    raise StoreError(f"{folder} has no room for another ledger")


def _charged_in(folder: Path) -> Event:
    found = []
    for path in _paths(folder):
        ledger = Ledger.open(path)
        found.append(ledger.charged())
        ledger.close()
    return together(*found) if found else NOTHING
