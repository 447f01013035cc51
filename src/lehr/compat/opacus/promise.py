"""What a private loop leaves behind besides its model: a certificate, and an entry in the budget of its data set.

Both are about what was allowed before the first step, never about where a loop happened to stop: so the steps are
planned, all of them are reserved in the budget, and what was not used is given back at the end.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from lehr import validate
from lehr.append_only import a_name
from lehr.compat.opacus.spending import Allowed
from lehr.errors import InvalidValue
from lehr.events import NOTHING, Adjacency, Event, Repeated, together
from lehr.planning.budget import Budget
from lehr.reports import issuing
from lehr.reports.certificate import Certificate, SharedBudget, Statements

NEIGHBOURS = Adjacency.ADD_OR_REMOVE_ONE


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What an engine is asked to leave behind. All of it is public, and called as at the other doors."""

    name: str
    delta: float | None = None
    settings_chosen_on: str | None = None
    stated: Statements | None = None
    budget: Path | None = None

    def __post_init__(self) -> None:
        a_name(name=self.name)
        if self.stated is not None and self.settings_chosen_on is not None:
            raise InvalidValue("settings_chosen_on", allowed="left out beside stated", given=self.settings_chosen_on)
        if self.settings_chosen_on is not None:
            self.statements(records=1)  # what is wrong with it is said now

    @property
    def is_asked(self) -> bool:
        """Whether anything is to be left behind."""
        return self.is_certified or self.budget is not None

    @property
    def is_certified(self) -> bool:
        """Whether somebody said how the settings were chosen."""
        return self.stated is not None or self.settings_chosen_on is not None

    def statements(self, *, records: int) -> Statements | None:
        """What a certificate passes on."""
        if self.settings_chosen_on is None:
            return None if self.stated is None else self.stated.of_records(records)
        return Statements(
            settings_chosen_on=self.settings_chosen_on,
            records=records,
            treated_as_public=("the number of records",),
        )


class Planned:
    """One training whose steps are all allowed beforehand. ``before`` is what was done to the records before it."""

    def __init__(self, promise: Promise, allowed: Allowed, *, before: Event, delta: float | None, records: int) -> None:
        self._promise, self._allowed, self._before, self._records = promise, allowed, before, records
        self._delta = promise.delta if delta is None else delta
        if promise.is_certified:
            validate.delta(delta=self._delta)
            self.certificate(shared=None)  # that there can be one is seen before a record is
        if promise.budget is not None:
            _refuse_unpaid(before)
            with Budget.open(promise.budget) as account:
                _refuse_other_neighbours(account)
                # An id that nobody keeps: no run in a folder takes this reservation for its own.
                account.reserve(self._of(allowed.steps), run=promise.name, run_id=secrets.token_hex(16))

    @property
    def is_begun(self) -> bool:
        """Whether a step was taken, now or before."""
        return together(self._before, self.used) != NOTHING

    @property
    def used(self) -> Event:
        """The steps of this training that were taken."""
        return self._of(self._allowed.used)

    def settled(self) -> SharedBudget | None:
        """The budget after what was not used is given back; nothing where there is none, or where it paid nothing."""
        if self._promise.budget is None:
            return None
        with Budget.open(self._promise.budget) as account:
            [ours] = (paid for paid in account.status().runs if paid.run == self._promise.name)
            if not ours.is_settled:
                account.settle(self._promise.name, used=self.used)
            return issuing.shared_budget(account.status(), run=self._promise.name) if self.is_begun else None

    def certificate(self, *, shared: SharedBudget | None) -> Certificate | None:
        """For all that was done before and all that was allowed, however much of it was used."""
        stated = self._promise.statements(records=self._records)
        if stated is None or self._delta is None:
            return None
        return issuing.issue(
            together(self._before, self._of(self._allowed.steps)),
            delta=self._delta,
            adjacency=NEIGHBOURS,
            stated=stated,
            charged=together(self._before, self.used),
            budget=shared,
        )

    def refuse_other(self, done: Event) -> None:
        """A checkpoint may bring steps that were not planned here: of those nothing was promised."""
        if together(done) != together(self._before, self.used):
            allowed = "one of this training: a certificate and a budget know of no other steps"
            raise InvalidValue("checkpoint", allowed=allowed, given=str(done))

    def _of(self, steps: int) -> Event:
        return Repeated(self._allowed.event, steps) if steps else NOTHING


def _refuse_unpaid(before: Event) -> None:
    if before != NOTHING:
        allowed = "with an engine and a directory that have done nothing yet: it has not paid for what they did"
        raise InvalidValue("budget", allowed=allowed, given=str(before))


def _refuse_other_neighbours(account: Budget) -> None:
    counted_by = account.status().adjacency
    if counted_by is not NEIGHBOURS:
        raise InvalidValue("budget", allowed=f"one that counts by {NEIGHBOURS.value}", given=counted_by.value)
