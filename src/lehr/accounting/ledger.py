"""What one run did to the private records, written to the disk before a released value is used.

>>> import tempfile
>>> from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
>>> step = PoissonSampled(512 / 60_000, Gaussian(1.23))
>>> folder = tempfile.TemporaryDirectory()
>>> ledger = Ledger.create(
...     f"{folder.name}/run.ledger", run="first try", plan_event=Repeated(step, 1000), delta=1e-5,
...     adjacency=Adjacency.ADD_OR_REMOVE_ONE)
>>> ledger.record(Repeated(step, 100))  # a block at once: the next hundred steps need not wait for the disk
>>> ledger.accepted(93)  # for the report; what was rejected stays charged
>>> print(ledger.charged())
100 × PoissonSampled(sampling_probability=0.00853333, Gaussian(noise_multiplier=1.23))
>>> ledger.finish()  # the run is over: from here on nothing more is taken
>>> ledger.close()
>>> folder.cleanup()

The rule for a loop: ``record`` first, then use the noisy value. A process that dies in between has charged a value that
nobody saw, which is safe; the other order is not.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from lehr import validate
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Event,
    RenyiLimit,
    check_adjacency,
    check_event,
    composed,
    counted,
    from_json,
    is_part,
    rest,
    steps_per_event,
    to_json,
    together,
)
from lehr.accounting.filter import is_within
from lehr.errors import BudgetExceeded, InvalidValue
from lehr.files import strict_json
from lehr.files.append_only import AppendOnlyFile, FileBacked, FileFormat, Journal, Row, check_name, row_errors

LEDGER_FORMAT = FileFormat(application_id=0x4C65684C, version=1, name="Lehr ledger", journal=Journal.WRITE_AHEAD)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of a ledger: an event that was charged, a number of steps that were accepted, or the end; and when."""

    at: str = ""
    event: Event = NOTHING
    accepted: int = 0
    note: str = ""
    finishes: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)


class Ledger(FileBacked):
    """An open ledger. It takes what the plan of its run has left, and nothing else, until it is finished."""

    file_format: ClassVar[FileFormat] = LEDGER_FORMAT

    def __init__(self, file: AppendOnlyFile) -> None:
        super().__init__(file)
        rows = file.rows()
        with row_errors(file.path, rows[0]):
            content = rows[0].content()
            self.run = check_name(run=content["run"])
            self.plan_event = from_json(content["plan_event"])
            self.delta = validate.delta(delta=content["delta"])
            self.adjacency = Adjacency(content["adjacency"])
        self._known = _Totals(run=self.run, plan_event=self.plan_event, adjacency=self.adjacency)
        self._totals(rows)

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, run: str, plan_event: Event, delta: float, adjacency: Adjacency
    ) -> Self:
        """Begin the ledger of a run in a new file. An existing file is never written over."""
        body = {
            "run": check_name(run=run),
            "plan_event": to_json(check_event(plan_event=plan_event)),
            "delta": validate.delta(delta=delta),
            "adjacency": check_adjacency(adjacency=adjacency).value,
        }
        return cls(AppendOnlyFile.create(path, LEDGER_FORMAT, kind="opened", body=body))

    def record(self, event: Event, *, note: str = "", counts: Mapping[str, int] | None = None) -> None:
        """Charge the event; when this returns, it is on the disk, and what it releases may be used.

        ``counts`` says what it pays for, such as ``{"steps": 100}``, to be asked for by ``count``.
        """
        entry = Entry(event=check_event(event=event), note=note, counts=_check_counts(counts or {}))
        self._append("charged", entry, {"event": to_json(event), "note": note, "counts": entry.counts})

    def accepted(self, count: int, *, note: str = "") -> None:
        """Note that ``count`` of the steps recorded so far were accepted. It never changes what was charged."""
        entry = Entry(accepted=validate.count(minimum=0, count=count), note=note)
        self._append("accepted", entry, {"count": entry.accepted, "note": note})

    def finish(self) -> None:
        """End the run: when this returns, nothing more is taken, from any process. Finishing twice does no harm."""
        with self._file.transaction() as transaction:
            if not self._totals(transaction.rows).is_finished:
                transaction.append("finished", {})

    def _append(self, kind: str, entry: Entry, body: Mapping[str, object]) -> None:
        with self._file.transaction() as transaction:
            self._totals(transaction.rows).after(entry)  # refuses what the plan does not have
            transaction.append(kind, body)

    def check_same(
        self, *, run: str | None = None, plan_event: Event | None = None, adjacency: Adjacency | None = None
    ) -> None:
        """Refuse this ledger where it is not the one of the given run, plan or adjacency."""
        if run is not None and run != self.run:
            raise InvalidValue("ledger", allowed=f"that of the run {run!r}", given=self.run)
        if plan_event is not None and counted(plan_event) != counted(self.plan_event):
            raise InvalidValue("ledger", allowed=f"that of the plan {plan_event}", given=str(self.plan_event))
        if adjacency is not None and adjacency is not self.adjacency:
            raise InvalidValue("ledger", allowed=f"for {adjacency.value}", given=self.adjacency.value)

    def charged(self) -> Event:
        """Everything recorded so far, each distinct event with its count."""
        return self._totals(self._file.rows()).charged

    def count(self, name: str) -> int:
        """How many of these, of all attempts together, were paid for."""
        return sum(entry.counts.get(name, 0) for entry in self.entries())

    def remaining(self) -> Event:
        """What of the plan has not been recorded."""
        return rest(self.plan_event, self.charged())

    def accepted_count(self) -> int:
        """How many steps were noted as accepted."""
        return self._totals(self._file.rows()).accepted

    def is_finished(self) -> bool:
        """Whether the run is over, so that nothing more is taken."""
        return self._totals(self._file.rows()).is_finished

    def entries(self) -> tuple[Entry, ...]:
        """Every line of the ledger after its opening, oldest first."""
        return tuple(_entry(row) for row in self._file.rows()[1:])

    def _totals(self, rows: tuple[Row, ...]) -> _Totals:
        known = self._known
        for row in rows[known.rows :]:
            with row_errors(self.path, row):
                known = known.after(_entry(row))
        self._known = known
        return known


@dataclass(frozen=True, kw_only=True, slots=True)
class _Totals:
    """What the first ``rows`` rows say, and the rules for the next one, which hold for writing and for reading."""

    run: str
    plan_event: Event
    adjacency: Adjacency
    rows: int = 1
    charged: Event = NOTHING
    accepted: int = 0
    is_finished: bool = False

    def after(self, entry: Entry) -> _Totals:
        if self.is_finished:
            raise BudgetExceeded(f"the run {self.run!r} is finished, and its ledger takes nothing more")
        charged = together(self.charged, entry.event)
        if not _is_allowed(charged, self.plan_event, self.adjacency):
            left = rest(self.plan_event, self.charged)
            raise BudgetExceeded(f"the plan of the run {self.run!r} has {left} left, and this asks for {entry.event}")
        open_steps = sum(count * steps_per_event(atom) for atom, count in counted(charged).items()) - self.accepted
        if entry.accepted > open_steps:
            allowed = f"at most {open_steps}, the steps recorded and not noted as accepted yet"
            raise InvalidValue("count", allowed=allowed, given=entry.accepted)
        accepted = self.accepted + entry.accepted
        return replace(self, rows=self.rows + 1, charged=charged, accepted=accepted, is_finished=entry.finishes)


def _is_allowed(charged: Event, plan_event: Event, adjacency: Adjacency) -> bool:
    """Whether all of it is in the plan; or what is not fits under the plan's limit, where it has one."""
    if is_part(charged, of=plan_event):
        return True
    planned = counted(plan_event)
    limits = [atom for atom in planned if isinstance(atom, RenyiLimit)]
    if len(limits) != 1 or planned.pop(limits[0]) != 1:  # charged as such, beside others, the limit fills itself
        return False
    chosen = {atom: count - planned.get(atom, 0) for atom, count in counted(charged).items()}
    surplus = composed({atom: count for atom, count in chosen.items() if count > 0})
    return is_within(surplus, limits[0], adjacency)


def _entry(row: Row) -> Entry:
    content = row.content()
    match row.kind:
        case "charged":
            counts = _check_counts(strict_json.check_object("counts", content.get("counts", {})))
            return Entry(at=row.at, event=from_json(content["event"]), note=str(content["note"]), counts=counts)
        case "accepted":
            accepted = validate.count(minimum=0, count=content["count"])
            return Entry(at=row.at, accepted=accepted, note=str(content["note"]))
        case "finished":
            return Entry(at=row.at, finishes=True)
        case _:
            raise InvalidValue("kind", allowed="one of charged, accepted, finished", given=row.kind)


def _check_counts(counts: Mapping[str, object]) -> dict[str, int]:
    return {name: validate.count(minimum=0, **{name: number}) for name, number in counts.items()}
