"""Which process works on which trial: each trial has one owner at a time, and none is lost when its owner dies.

A trial is made in one transaction, as running, with the mark of the folder that it is worked on in. Its owner holds a
lock on a file of that folder, which the system gives back when the owner dies, however that happens. Whoever works in
the same folder next finds trials that are running and whose lock is free, and goes on with them: with the settings that
they were given, and from the checkpoint of their run.

A trial of another folder, which may be on another machine, is left alone while it is seen to be alive. When it was not
seen for ``SECONDS_UNSEEN``, it is failed, which exactly one process can do, and that one begins its settings anew.

There are never more trials than were asked for: a trial counts only if there are fewer trials before it that did not
fail, and trials are numbered by the database one by one.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from lehr.errors import StoreError
from lehr.files import lock
from lehr.search.space import Parameters

SECONDS_UNSEEN = 1800.0
SECONDS_BETWEEN_SIGHTS = 60.0
FOLDER, SEEN_AT = "folder", "seen_at"
FIXED = "fixed_params"  # where Optuna looks for what a trial has to try


@dataclass(eq=False)
class Claim:
    """A trial that this process owns, until it lets go of it."""

    number: int
    trial_id: int
    held: int
    storage: optuna.storages.BaseStorage
    clock: Callable[[], float] = time.time
    _seen_at: float = field(default=0.0)

    def seen(self) -> None:
        """Say that it is alive, not too often."""
        if (now := self.clock()) - self._seen_at >= SECONDS_BETWEEN_SIGHTS:
            self._seen_at = now
            with suppress(UpdateFinishedTrialError):  # given up by others; what was found is dropped at the end
                self.storage.set_trial_user_attr(self.trial_id, SEEN_AT, now)

    def let_go(self) -> None:
        """Give the lock back."""
        os.close(self.held)


@dataclass(frozen=True, kw_only=True, eq=False)
class Claims:
    """Makes and finds the trials of a study for those who work in one folder."""

    storage: optuna.storages.BaseStorage
    study_id: int
    directory: Path
    folder: str
    combinations: Sequence[Parameters] | None = None  # what is to be tried, one after the other, where that is listed
    clock: Callable[[], float] = time.time

    def next(self, *, limit: int) -> Claim | None:
        """A trial to work on, or none where enough are done or worked on by others."""
        with turn(self.directory):
            trials = self._trials()
            for trial in trials:
                if (found := self._abandoned(trial, trials, limit)) is not None:
                    return found
            for trial in trials:
                if self._is_gone(trial) and self._fail(trial):
                    return self._made(trial.params)
            if sum(counts(trial) for trial in trials) >= limit:
                return None
            return self._begun(trials, limit)

    def _begun(self, trials: Sequence[FrozenTrial], limit: int) -> Claim | None:
        fixed: Parameters = {}
        if self.combinations is not None:
            tried = [trial.system_attrs.get(FIXED) for trial in trials if counts(trial)]
            left = [combination for combination in self.combinations if combination not in tried]
            if not left:
                return None
            fixed = left[0]
        claim = self._made(fixed)
        if self._is_surplus(claim.number, self._trials(), limit):  # another machine was faster
            self.storage.set_trial_state_values(claim.trial_id, TrialState.FAIL)
            claim.let_go()
            return None
        return claim

    def _made(self, fixed: Parameters) -> Claim:
        template = create_trial(
            state=TrialState.RUNNING,
            user_attrs={FOLDER: self.folder, SEEN_AT: self.clock()},
            system_attrs={FIXED: dict(fixed)} if fixed else {},
        )
        trial_id = self.storage.create_new_trial(self.study_id, template_trial=template)
        number = self.storage.get_trial_number_from_id(trial_id)
        held = self._lock(number)
        assert held is not None, "a new trial has a lock that nobody holds"
        return self._claim(number, trial_id, held)

    def _abandoned(self, trial: FrozenTrial, trials: Sequence[FrozenTrial], limit: int) -> Claim | None:
        """A trial of this folder whose owner is dead; one that is too many is failed instead."""
        if trial.state != TrialState.RUNNING or trial.user_attrs.get(FOLDER) != self.folder:
            return None
        if (held := self._lock(trial.number)) is None:
            return None
        if self._is_surplus(trial.number, trials, limit):
            self._fail(trial)
            os.close(held)
            return None
        return self._claim(trial.number, self._id(trial), held)

    def _claim(self, number: int, trial_id: int, held: int) -> Claim:
        claim = Claim(number, trial_id, held, self.storage, self.clock)
        claim.seen()
        return claim

    def _is_gone(self, trial: FrozenTrial) -> bool:
        seen_at = trial.user_attrs.get(SEEN_AT, 0.0)
        is_other = trial.state == TrialState.RUNNING and trial.user_attrs.get(FOLDER) != self.folder
        return is_other and not self.clock() - seen_at < SECONDS_UNSEEN

    def _fail(self, trial: FrozenTrial) -> bool:
        """Whether it was this process that failed it."""
        try:
            return self.storage.set_trial_state_values(self._id(trial), TrialState.FAIL)
        except UpdateFinishedTrialError:
            return False

    def _is_surplus(self, number: int, trials: Sequence[FrozenTrial], limit: int) -> bool:
        return sum(counts(trial) for trial in trials if trial.number < number) >= limit

    def _id(self, trial: FrozenTrial) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.study_id, trial.number)

    def _trials(self) -> list[FrozenTrial]:
        return self.storage.get_all_trials(self.study_id)

    def _lock(self, number: int) -> int | None:
        locks = self.directory / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        try:
            return lock.taken(locks / str(number), for_what=f"trial {number}")
        except StoreError:
            return None


def counts(trial: FrozenTrial) -> bool:
    """Whether it is one of those that were asked for: done, given up early, or worked on."""
    return bool(trial.state != TrialState.FAIL)


@contextmanager
def turn(directory: Path) -> Iterator[None]:
    """The processes of one folder look for trials one after the other."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
