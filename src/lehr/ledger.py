"""What one run did to the private records, written to the disk before a released value is used.

>>> import tempfile
>>> from lehr.events import Adjacency, Gaussian, PoissonSampled, Repeated
>>> step = PoissonSampled(512 / 60_000, Gaussian(1.23))
>>> folder = tempfile.TemporaryDirectory()
>>> ledger = Ledger.create(
...     f"{folder.name}/run.ledger", run="first try", plan_event=Repeated(step, 1000), delta=1e-5,
...     adjacency=Adjacency.ADD_OR_REMOVE_ONE)
>>> ledger.record(Repeated(step, 100))  # a block at once: the next hundred steps need not wait for the disk
>>> ledger.accepted(93)  # for the report; what was rejected stays charged
>>> print(ledger.charged())
100 × PoissonSampled(sampling_probability=0.00853333, Gaussian(noise_multiplier=1.23))
>>> ledger.close()
>>> folder.cleanup()

The rule for a loop: ``record`` first, then use the noisy value. A process that dies in between has charged a value that
nobody saw, which is safe; the other order is not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Self

from lehr import validate
from lehr.append_only import AppendOnlyFile, FileFormat, Journal, Row, reading
from lehr.errors import BudgetExceeded, DamagedFile
from lehr.events import (
    NOTHING,
    Adjacency,
    Event,
    an_adjacency,
    an_event,
    from_json,
    is_part,
    rest,
    to_json,
    together,
)

LEDGER_FORMAT = FileFormat(application_id=0x4C65684C, version=1, name="Lehr ledger", journal=Journal.WRITE_AHEAD)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One line of a ledger: an event that was charged, or a number of steps that were accepted; and when."""

    at: str
    event: Event
    accepted: int
    note: str


class Ledger:
    """An open ledger. It takes what the plan of its run has left, and nothing else."""

    def __init__(self, file: AppendOnlyFile) -> None:
        opening = file.rows()[0]
        with reading(file.path, opening):
            content = opening.content()
            self.run = validate.text(run=content["run"])
            self.plan_event = from_json(content["plan_event"])
            self.delta = validate.delta(delta=content["delta"])
            self.adjacency = Adjacency(content["adjacency"])
        self._file = file
        self._known = _Totals()

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, run: str, plan_event: Event, delta: float, adjacency: Adjacency
    ) -> Self:
        """Begin the ledger of a run in a new file. An existing file is never written over."""
        body = {
            "run": validate.text(run=run),
            "plan_event": to_json(an_event(plan_event=plan_event)),
            "delta": validate.delta(delta=delta),
            "adjacency": an_adjacency(adjacency=adjacency).value,
        }
        return cls(AppendOnlyFile.create(path, LEDGER_FORMAT, kind="opened", body=body))

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, continuing: str | None = None) -> Self:
        """Open a ledger to resume or inspect its run; ``continuing`` is a ``head`` that it must still have."""
        file = AppendOnlyFile.open(path, LEDGER_FORMAT, continuing=continuing)
        try:
            ledger = cls(file)
            ledger.charged()
        except BaseException:
            file.close()
            raise
        return ledger

    def record(self, event: Event, *, note: str = "") -> None:
        """Charge the event; when this returns, it is on the disk, and what it releases may be used."""
        an_event(event=event)
        with self._file.transaction() as transaction:
            left = rest(self.plan_event, self._totals(transaction.rows).charged)
            if not is_part(event, of=left):
                raise BudgetExceeded(f"the plan of the run {self.run!r} has {left} left, and this asks for {event}")
            transaction.append("charged", {"event": to_json(event), "note": note})

    def accepted(self, count: int, *, note: str = "") -> None:
        """Note that ``count`` of the steps recorded so far were accepted. It never changes what was charged."""
        self._file.append("accepted", {"count": validate.count(minimum=0, count=count), "note": note})

    def charged(self) -> Event:
        """Everything recorded so far, each distinct event with its count."""
        return self._totals(self._file.rows()).charged

    def remaining(self) -> Event:
        """What of the plan has not been recorded yet."""
        return rest(self.plan_event, self.charged())

    def accepted_count(self) -> int:
        """How many steps were noted as accepted."""
        return self._totals(self._file.rows()).accepted

    def entries(self) -> tuple[Entry, ...]:
        """Every line of the ledger after its opening, oldest first."""
        return tuple(_entry(self.path, row) for row in self._file.rows()[1:])

    @property
    def head(self) -> str:
        """What to note down elsewhere, to be told by ``open(..., continuing=head)`` if an old copy is put back."""
        return self._file.head

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._file.path

    def close(self) -> None:
        """Let go of the file. Closing twice does no harm."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _totals(self, rows: tuple[Row, ...]) -> _Totals:
        known = self._known
        new = (_entry(self.path, row) for row in rows[known.rows :])
        self._known = reduce(_Totals.with_entry, new, known)
        return self._known


@dataclass(frozen=True, slots=True)
class _Totals:
    rows: int = 1
    charged: Event = NOTHING
    accepted: int = 0

    def with_entry(self, entry: Entry) -> _Totals:
        return _Totals(self.rows + 1, together(self.charged, entry.event), self.accepted + entry.accepted)


def _entry(path: Path, row: Row) -> Entry:
    with reading(path, row):
        content = row.content()
        note = str(content["note"])
        if row.kind == "charged":
            return Entry(at=row.at, event=from_json(content["event"]), accepted=0, note=note)
        if row.kind == "accepted":
            accepted = validate.count(minimum=0, count=content["count"])
            return Entry(at=row.at, event=NOTHING, accepted=accepted, note=note)
    raise DamagedFile(f"{path}: row {row.seq} is of the unknown kind {row.kind!r}")
