"""The privacy budget of a data set, across every run, search and machine that shares the file.

>>> import tempfile
>>> from lehr.accounting.events import Gaussian, PoissonSampled, Repeated
>>> step = PoissonSampled(512 / 60_000, Gaussian(1.23))
>>> folder = tempfile.TemporaryDirectory()
>>> budget = Budget.create(f"{folder.name}/mnist.budget", dataset="MNIST, training half", epsilon=3.0, delta=1e-5)
>>> budget.reserve(Repeated(step, 2000), run="first try")  # before the run touches a record
>>> budget.spend("first try", Repeated(step, 100))  # before the released values are used
>>> print(budget.settle("first try"))  # the run stopped early: what it did not use is given back
1900 × PoissonSampled(sampling_probability=0.00853333, Gaussian(noise_multiplier=1.23))
>>> budget.close()
>>> folder.cleanup()

A reservation is charged in full from the moment it is made, so a run that crashes, or never settles, costs what it
could have used. Whether a reservation fits is decided by a privacy filter over everything charged (``mode`` "filter"),
or, where the first reservation asks for the whole budget, by the tight accountant on that one plan, after which nothing
else is admitted and nothing is given back (``mode`` "single plan"). Why both hold: budget.proof.md.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from lehr import accounting, validate
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Event,
    Repeated,
    check_adjacency,
    check_event,
    counted,
    from_json,
    is_part,
    rest,
    to_json,
    together,
)
from lehr.accounting.filter import RenyiFilter
from lehr.accounting.ledger import Ledger
from lehr.errors import AccountantFailed, BudgetExceeded, InvalidValue, UnsupportedEvent
from lehr.files.append_only import AppendOnlyFile, FileBacked, FileFormat, Journal, Row, check_name, row_errors
from lehr.planning.plan import RECORD, UNITS

# A rollback journal, because the machines that share a budget may reach it over a network file system.
BUDGET_FORMAT = FileFormat(application_id=0x4C656842, version=1, name="Lehr budget", journal=Journal.ROLLBACK)
FILTER, SINGLE_PLAN = "filter", "single plan"
MOST_STEPS = 10**9  # a step that costs next to nothing would otherwise be counted for ever


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatus:
    """One run of a budget: what it reserved, what it has used of that, and whether it gave the rest back."""

    run: str
    reserved: Event
    used: Event = NOTHING
    is_settled: bool = False
    whole_budget_epsilon: float | None = None  # the ε of the tight accountant, where the run took the whole budget
    run_id: str | None = field(default=None, compare=False)  # random: which run of this name reserved

    @property
    def charged(self) -> Event:
        """What the budget counts for this run: the reservation, until its rest is given back."""
        gave_back = self.is_settled and self.whole_budget_epsilon is None
        return self.used if gave_back else self.reserved


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetStatus:
    """Where a budget stands. ``epsilon_spent`` counts open reservations in full."""

    dataset: str
    epsilon: float
    delta: float
    adjacency: Adjacency
    mode: str
    orders: tuple[float, ...]
    epsilon_spent: float
    runs: tuple[RunStatus, ...]
    unit: str = RECORD  # of privacy: a record, or a user


class Budget(FileBacked):
    """An open budget. Threads may share it; every process opens its own."""

    file_format: ClassVar[FileFormat] = BUDGET_FORMAT

    def __init__(self, file: AppendOnlyFile) -> None:
        super().__init__(file)
        rows = file.rows()
        with row_errors(file.path, rows[0]):
            self.dataset, self._filter = _read_limit(rows[0])
            self.unit = validate.one_of(UNITS, unit=rows[0].content().get("unit", RECORD))  # older files have none
        self._known = _Books(limit=self._filter.epsilon)
        self._books(rows)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        dataset: str,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
        expecting: Event | None = None,
        unit: str = RECORD,
    ) -> Self:
        """Open the account of a data set, in a new file, with its limit.

        ``dataset`` is a name, never anything computed from the records. ``unit`` is what the limit protects, a record
        or a user: it is fixed, and runs of the other unit are refused. ``expecting`` is the event that will fill most
        of the budget, if one is known already: the filter is then tuned to it, and admits more of it.
        """
        chosen = RenyiFilter.choose(
            epsilon=epsilon, delta=delta, adjacency=check_adjacency(adjacency=adjacency), expecting=expecting
        )
        body = {
            "dataset": check_name(dataset=dataset),
            "epsilon": chosen.epsilon,
            "delta": chosen.delta,
            "adjacency": chosen.adjacency.value,
            "orders": list(chosen.orders),
            "unit": validate.one_of(UNITS, unit=unit),
        }
        return cls(AppendOnlyFile.create(path, BUDGET_FORMAT, kind="opened", body=body))

    def reserve(
        self, event: Event, *, run: str, whole_budget: bool = False, run_id: str | None = None, unit: str = RECORD
    ) -> None:
        """Set aside all that a run may do, before it touches a record; refused where that would pass the limit.

        ``unit`` is the run's unit of privacy, which must be the budget's.
        A run that can be resumed has a random ``run_id``, by which it finds its own reservation again. With
        ``whole_budget`` the tight accountant decides and admits more, but the budget must be unused, and this run is
        the last that it pays for.
        """
        self._reserve({run: event}, run_id=run_id, whole_budget=whole_budget, unit=unit)

    def charge(self, events: Mapping[str, Event], *, run_id: str, unit: str = RECORD) -> None:
        """Reserve for several runs, all or none, and settle them in full at once: nothing of it is ever given back."""
        self._reserve(events, run_id=run_id, is_settled=True, unit=unit)

    def _reserve(
        self,
        events: Mapping[str, Event],
        *,
        run_id: str | None,
        whole_budget: bool = False,
        is_settled: bool = False,
        unit: str,
    ) -> None:
        if unit != self.unit:
            raise InvalidValue("unit", allowed=f"that of the budget, a {self.unit}", given=f"a {unit}")
        for run, each in events.items():
            check_name(run=run)
            _check_nonempty(event=each)
        if run_id is not None:
            validate.text(run_id=run_id)
        # The first look at an event is slow and the second is not; the file is not locked during the first.
        event = together(*events.values())
        epsilon = self._tight_epsilon(event) if whole_budget else None
        if not whole_budget:
            self._filter.admits(event)
        with self._file.transaction() as transaction:
            books = self._books(transaction.rows)
            for run in events:
                books.refuse_taken(run)
            if self._admits(event, books, epsilon):
                for run, each in events.items():
                    body = {"run": run, "event": to_json(each), "whole_budget_epsilon": epsilon, "run_id": run_id}
                    transaction.append("reserved", body)
                    if is_settled:
                        transaction.append("settled", {"run": run, "used": to_json(each)})
                return
        raise BudgetExceeded(self._refusal(event, next(iter(events)), books, epsilon))

    def reservation(self, run: str) -> Event:
        """What a run has reserved."""
        return self._books(self._file.rows()).of(run).reserved

    def spend(self, run: str, event: Event) -> None:
        """Record that a part of the reservation is used; when this returns, its released values may be used."""
        check_event(event=event)
        with self._file.transaction() as transaction:
            self._books(transaction.rows).with_spending(run, event)
            transaction.append("spent", {"run": run, "event": to_json(event)})

    def settle(self, run: str, *, used: Event | None = None, ledger: Ledger | None = None) -> Event:
        """End a run and give back what it did not use; returns what was given back.

        A run that kept a ledger hands it over: the ledger is finished first, so that nothing can be recorded in it
        afterwards, and what it has charged is what the run used. ``used`` is for a run that kept its own count; one
        of the two must be given where nothing was ever recorded with ``spend``. After a whole-budget reservation
        nothing is given back.
        """
        if ledger is not None:
            if used is not None:
                raise InvalidValue("used", allowed="left out where the ledger says it", given=str(used))
            used = self._finished(run, ledger)
        with self._file.transaction() as transaction:
            settled = self._books(transaction.rows).with_settlement(run, used)
            transaction.append("settled", {"run": run, "used": to_json(settled.used)})
            return rest(settled.reserved, settled.charged)

    def status(self) -> BudgetStatus:
        """The limit, what is spent of it, and each run."""
        books = self._books(self._file.rows())
        return BudgetStatus(
            dataset=self.dataset,
            epsilon=self._filter.epsilon,
            delta=self._filter.delta,
            adjacency=self._filter.adjacency,
            mode=FILTER if books.closed_by is None else SINGLE_PLAN,
            orders=self._filter.orders,
            epsilon_spent=self._epsilon_spent(books),
            runs=tuple(books.runs.values()),
            unit=self.unit,
        )

    def largest_steps(self, step_event: Event) -> int:
        """How many repetitions of an event could be reserved now, at most 10⁹."""
        _check_nonempty(step_event=step_event)
        return self._how_many(step_event, self._books(self._file.rows()), limit=MOST_STEPS)

    def _books(self, rows: tuple[Row, ...]) -> _Books:
        books = self._known.after(rows, self.path)
        self._known = books
        return books

    def _finished(self, run: str, ledger: Ledger) -> Event:
        """All that a run did, from its own ledger, which takes nothing more from now on."""
        found = self._books(self._file.rows()).unsettled(run)
        ledger.check_same(run=run, plan_event=found.reserved, adjacency=self._filter.adjacency)
        ledger.finish()
        return ledger.charged()

    def _tight_epsilon(self, event: Event) -> float:
        return accounting.bound(event, delta=self._filter.delta, adjacency=self._filter.adjacency).epsilon

    def _admits(self, event: Event, books: _Books, whole_budget_epsilon: float | None) -> bool:
        if not books.is_open_to(whole_budget_epsilon):
            return False
        return whole_budget_epsilon is not None or self._filter.admits(together(books.charged, event))

    def _epsilon_spent(self, books: _Books) -> float:
        if books.closed_by is not None and books.closed_by.whole_budget_epsilon is not None:
            return books.closed_by.whole_budget_epsilon
        return self._filter.epsilon_spent(books.charged)

    def _how_many(self, step_event: Event, books: _Books, *, limit: int) -> int:
        """The largest count up to ``limit`` that would be admitted."""
        counts = range(1, limit + 1)
        return bisect_left(counts, True, key=lambda count: not self._admits(Repeated(step_event, count), books, None))

    def _refusal(self, event: Event, run: str, books: _Books, whole_budget_epsilon: float | None) -> str:
        """What the run would cost, what is left, and what could be asked for instead."""
        limit = f"the budget of {self.dataset!r} is ε = {self._filter.epsilon:g} at δ = {self._filter.delta:g}"
        if books.closed_by is not None:
            return f"the run {run!r} is refused: {limit}, and the run {books.closed_by.run!r} took the whole of it"
        is_unused, parts = books.charged == NOTHING, counted(event)
        if whole_budget_epsilon is None:
            after = self._filter.epsilon_spent(together(books.charged, event))
            asked = f"would bring what is spent from ε = {self._epsilon_spent(books):.4g} to {after:.4g}"
        elif is_unused:
            asked = f"would cost ε = {whole_budget_epsilon:.4g}"
        else:
            asked = f"asks for the whole budget, of which ε = {self._epsilon_spent(books):.4g} is spent or reserved"
        if len(parts) == 1:
            [(atom, count)] = parts.items()
            asked += f"; {self._how_many(atom, books, limit=count)} × {atom} would fit"
        if whole_budget_epsilon is None and is_unused:
            with suppress(AccountantFailed, UnsupportedEvent):
                if self._tight_epsilon(event) <= self._filter.epsilon:
                    asked += "; as the only run that this budget ever pays for (whole_budget) it would fit as it is"
        return f"the run {run!r} is refused: {limit}, and it {asked}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Books:
    """The runs as the first ``rows`` rows of the file have them, and the rules for the next row.

    The rules hold for writing and for reading alike. Only the filter is not asked again on reading: its verdict is a
    computed number, and a file must not turn into a damaged one where another machine rounds the last digit otherwise.
    """

    limit: float
    rows: int = 1
    runs: dict[str, RunStatus] = field(default_factory=dict)

    @property
    def charged(self) -> Event:
        return together(*(run.charged for run in self.runs.values()))

    @property
    def closed_by(self) -> RunStatus | None:
        """The run that took the whole budget, if one did."""
        return next((run for run in self.runs.values() if run.whole_budget_epsilon is not None), None)

    def of(self, run: str) -> RunStatus:
        if run not in self.runs:
            raise InvalidValue("run", allowed=f"one of {sorted(self.runs)}", given=run)
        return self.runs[run]

    def unsettled(self, run: str) -> RunStatus:
        found = self.of(run)
        if found.is_settled:
            raise InvalidValue("run", allowed="a run that is not settled yet", given=run)
        return found

    def refuse_taken(self, run: str) -> None:
        if run in self.runs:
            raise InvalidValue("run", allowed="a name that this budget has not seen yet", given=run)

    def is_open_to(self, whole_budget_epsilon: float | None) -> bool:
        """Whether a reservation can follow at all: none after a whole-budget one, which itself must be the first."""
        if self.closed_by is not None:
            return False
        if whole_budget_epsilon is not None:
            return self.charged == NOTHING and whole_budget_epsilon <= self.limit
        return True

    def with_reservation(self, run: str, event: Event, whole_budget_epsilon: float | None, run_id: object) -> RunStatus:
        self.refuse_taken(check_name(run=run))
        if not self.is_open_to(whole_budget_epsilon):
            raise BudgetExceeded(f"the run {run!r} cannot follow what was reserved before it")
        return RunStatus(
            run=run,
            reserved=_check_nonempty(event=event),
            whole_budget_epsilon=whole_budget_epsilon,
            run_id=None if run_id is None else validate.text(run_id=run_id),
        )

    def with_spending(self, run: str, event: Event) -> RunStatus:
        found = self.unsettled(run)
        left = rest(found.reserved, found.used)
        if not is_part(event, of=left):
            raise BudgetExceeded(f"the run {run!r} has {left} left of its reservation, and this asks for {event}")
        return replace(found, used=together(found.used, event))

    def with_settlement(self, run: str, used: Event | None) -> RunStatus:
        found = self.unsettled(run)
        if used is None and found.used == NOTHING:
            raise InvalidValue("used", allowed="stated for a run that recorded nothing with spend", given=used)
        used = found.used if used is None else check_event(used=used)
        if not is_part(found.used, of=used):
            raise InvalidValue("used", allowed=f"at least what was recorded with spend, {found.used}", given=str(used))
        if not is_part(used, of=found.reserved):
            raise InvalidValue("used", allowed=f"at most what was reserved, {found.reserved}", given=str(used))
        return replace(found, used=together(used), is_settled=True)

    def after(self, rows: tuple[Row, ...], path: Path) -> _Books:
        books = replace(self, rows=max(self.rows, len(rows)), runs=dict(self.runs))
        for row in rows[self.rows :]:
            with row_errors(path, row):
                status = _after_row(row, books)
            books.runs[status.run] = status
        return books


def _after_row(row: Row, books: _Books) -> RunStatus:
    content = row.content()
    run = validate.text(run=content["run"])
    match row.kind:
        case "reserved":
            epsilon = content["whole_budget_epsilon"]
            whole = None if epsilon is None else validate.non_negative(whole_budget_epsilon=epsilon)
            return books.with_reservation(run, from_json(content["event"]), whole, content.get("run_id"))
        case "spent":
            return books.with_spending(run, from_json(content["event"]))
        case "settled":
            return books.with_settlement(run, from_json(content["used"]))
        case _:
            raise InvalidValue("kind", allowed="one of reserved, spent, settled", given=row.kind)


def _read_limit(row: Row) -> tuple[str, RenyiFilter]:
    content = row.content()
    orders = content["orders"]
    if not isinstance(orders, list):
        raise InvalidValue("orders", allowed="a list of numbers", given=orders)
    return check_name(dataset=content["dataset"]), RenyiFilter(
        epsilon=validate.positive(epsilon=content["epsilon"]),
        delta=validate.delta(delta=content["delta"]),
        adjacency=Adjacency(content["adjacency"]),
        orders=tuple(validate.positive(order=order) for order in orders),
    )


def _check_nonempty(**named: object) -> Event:
    """A checked event that is not empty."""
    event = check_event(**named)
    if together(event) == NOTHING:
        raise InvalidValue(next(iter(named)), allowed="something that is done to the records", given=event)
    return event
