"""Repeated selection: full private trials with settings drawn at random, of which nothing but the best is ever seen.

    SEARCH/
        search.json     what was asked for, the plan of a trial and the price, from before the first trial; public
        private/        while the search runs, of mode 0700: the key, how far it is, the best trial, the running one
        winner/         the run folder of the best trial, once the search is over, with its settings.json

The number of trials, their settings and their first weights follow from the key, so that a search that was killed goes
on as it began. When it is over, the key and every trial but the winner are destroyed. Nothing that is kept or shown
depends on how many there were: not a name, a number or a time. Why that is needed: planning/search_cost.proof.md.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lehr import validate
from lehr.append_only import AppendOnlyFile, a_name
from lehr.errors import InvalidValue
from lehr.files import json_file, lines_file, lock, new_folder, strict_json, whole_file
from lehr.ledger import LEDGER_FORMAT
from lehr.planning import search_cost
from lehr.planning.search_cost import RepeatedSelection
from lehr.rng import RunKey
from lehr.run_folder import differences, refuse_used
from lehr.run_shape import RunFiles
from lehr.search import paying
from lehr.search.asked import ACCURACY
from lehr.search.certifying import certify
from lehr.search.checking import refuse_unfit_records
from lehr.search.objective import Outcome, tried
from lehr.search.paid import PaidSearch

FORMAT, FORMAT_VERSION = "lehr-selection", 1
SETTINGS = "settings.json"
WON, LOST, TIDY, OVER = LAST = ("won", "lost", "tidy", "over")


@dataclass(frozen=True)
class SelectionFiles:
    """Where the files of a selection are."""

    directory: Path

    @property
    def asked(self) -> Path:
        return self.directory / "search.json"

    @property
    def winner(self) -> Path:
        return self.directory / "winner"

    @property
    def private(self) -> Path:
        return self.directory / "private"

    @property
    def key(self) -> Path:
        return self.private / "key"

    @property
    def lock(self) -> Path:
        return self.private / "lock"

    @property
    def standing(self) -> Path:
        return self.private / "standing.json"

    @property
    def trial(self) -> Path:
        return self.private / "trial"

    @property
    def best(self) -> Path:
        return self.private / "best"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a selection has come: the trials that are over, the best score, and what became of the last trial."""

    trials: int = 0
    best: float | None = None
    last: str = TIDY

    def after(self, outcome: Outcome, score: str) -> Standing:
        """With one trial more. Of equal scores the first is kept; a trial without a model is below every other."""
        worth = outcome.score if score == ACCURACY else -outcome.score
        is_better = not outcome.note and math.isfinite(worth) and (self.best is None or worth > self.best)
        return Standing(trials=self.trials + 1, best=worth if is_better else self.best, last=WON if is_better else LOST)

    @classmethod
    def from_json(cls, shape: object) -> Standing:
        """The standing of a JSON form."""
        given: dict[str, Any] = strict_json.fields("standing", shape, ("trials", "best", "last"))
        best = None if given["best"] is None else validate.finite(best=given["best"])
        trials = validate.count(minimum=0, trials=given["trials"])
        return cls(trials=trials, best=best, last=validate.one_of(LAST, last=given["last"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """A selection in a folder, to be run to its end. ``how`` goes on to every training: the device and the like."""

    paid: PaidSearch
    directory: Path
    name: str
    budget: Path | None = None
    how: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        a_name(name=self.name)
        _ = self.price

    @property
    def price(self) -> RepeatedSelection:
        """The law of the number of trials."""
        if not isinstance(self.paid.price, RepeatedSelection):
            raise InvalidValue("price", allowed="a RepeatedSelection", given=self.paid.price)
        return self.paid.price

    @property
    def files(self) -> SelectionFiles:
        """Where everything is."""
        return SelectionFiles(self.directory)

    def run(self) -> Path | None:
        """Make every trial that is left; the folder of the winner, or none where there is no model to keep."""
        files = self.files
        if not files.asked.exists():
            self._begin()
        begun_at = self._refuse_other()
        with suppress(OSError):  # it is empty only where a search that was over died in its last moment
            files.private.rmdir()
        if files.private.is_dir():
            with _held(files):
                if self._standing().last != OVER:
                    self._try_all(RunKey.load(files.key))
                self._finish(begun_at)
        return files.winner if files.winner.is_dir() else None

    def _begin(self) -> None:
        """Make the folder, whole or not at all, and reserve the whole search."""
        key = RunKey.fresh()
        self.paid.claim()
        self.paid.refuse_other_events(key.at(0, 0).generator("settings looked at", "cpu"))
        refuse_unfit_records(self.paid.search, data_dir=(self.how or {}).get("data_dir"))
        refuse_used(self.directory)
        locked_by = str(SelectionFiles(Path()).lock)
        with new_folder.made(self.directory, locked_by=locked_by) as beside:
            files = SelectionFiles(beside)
            whole_file.write_private(files.private / ".gitignore", "*\n")
            key.save(files.key)
            begun_at = datetime.now(UTC).isoformat(timespec="minutes")
            run_id = secrets.token_hex(16)
            json_file.write(files.asked, {**self._asked(), "begun_at": begun_at, "run_id": run_id})
        if self.budget is not None:
            with new_folder.removed_if_refused(self.directory, locked_by=locked_by):
                paying.reserve(self.budget, self.paid, name=self.name, run_id=run_id)

    def _refuse_other(self) -> str:
        """When the search began; one that was begun as another is refused."""
        files = self.files
        kept = json_file.read(files.asked, strict_json.a_table)
        begun_at = validate.text(begun_at=kept.pop("begun_at", None))
        run_id = kept.pop("run_id", None)
        asked = strict_json.loads(strict_json.dumps(self._asked()))
        assert isinstance(asked, dict)
        if differing := differences(kept, asked):
            allowed = f"gone on with as it began ({files.asked})"
            raise InvalidValue("search", allowed=allowed, given="; ".join(differing))
        if self.budget is not None and files.private.is_dir():
            if not files.standing.exists() and not files.trial.exists():
                paying.reserve(self.budget, self.paid, name=self.name, run_id=run_id)
            paying.refuse_unreserved(self.budget, self.paid, name=self.name, run_id=run_id)
        return begun_at

    def _asked(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "asked": self.paid.search.to_json(),
            "plan": self.paid.plan.to_json(),
            "price": search_cost.to_json(self.price),
            "budget": paying.dataset_of(self.budget),
        }

    def _try_all(self, key: RunKey) -> None:
        while (standing := self._tidied()).trials < number_of_trials(self.price, key):
            self._keep(standing.after(self._tried(key, standing.trials), self.paid.search.score))
        self._keep(replace(standing, last=OVER))

    def _tried(self, key: RunKey, place: int) -> Outcome:
        """One trial, from wherever its run stands. Nothing of it is told to anybody."""
        randomness = key.at(place, 0)
        parameters = self.paid.search.space.drawn(randomness.generator("settings of a trial", "cpu"))
        seed = randomness.seed("first weights of a trial") >> 8  # within what a seed may be
        how = {"name": self.name, "seed": seed, **self.paid.how(), **(self.how or {})}
        configuration = self.paid.configuration(parameters)
        while True:
            with warnings.catch_warnings(action="ignore"):  # once for each trial, they would count them
                outcome = tried(configuration, self.files.trial, score=self.paid.search.score, how=how)
            if not _was_begun_anew(self.files.trial):
                if self.files.trial.is_dir():
                    settings = self.paid.search.space.meant(parameters)
                    json_file.write(self.files.trial / SETTINGS, settings, overwrite=True)
                return outcome
            _destroy(self.files.trial)

    def _tidied(self) -> Standing:
        """The standing, with the last trial kept as the best one or destroyed."""
        files, standing = self.files, self._standing()
        if standing.last == WON and files.trial.exists():
            _destroy(files.best)
            files.trial.rename(files.best)
        if standing.last == LOST:
            _destroy(files.trial)
        tidy = replace(standing, last=TIDY)
        if tidy != standing:
            self._keep(tidy)
        return tidy

    def _standing(self) -> Standing:
        path = self.files.standing
        return json_file.read(path, Standing.from_json) if path.exists() else Standing()

    def _keep(self, standing: Standing) -> None:
        shape = {"trials": standing.trials, "best": standing.best, "last": standing.last}
        whole_file.write_private(self.files.standing, json_file.text(shape))

    def _finish(self, begun_at: str) -> None:
        """Put the winner where it stays, and destroy everything else. Doing so again, after a crash, does no harm."""
        files = self.files
        if files.best.is_dir():
            self._make_presentable(RunFiles(files.best), begun_at)
            files.best.rename(files.winner)
        self._tell_no_times(begun_at)  # before the rest is gone: without it, nobody would come back to do so
        _destroy(files.private, last=files.standing)
        self._tell_no_times(begun_at)

    def _tell_no_times(self, begun_at: str) -> None:
        """Give all that stays the time at which the search began."""
        files = self.files
        kept = (path for path in (files.asked, files.winner, *files.winner.rglob("*")) if path.exists())
        for path in (*kept, files.directory):
            os.utime(path, (_moment(begun_at),) * 2)

    def _make_presentable(self, run: RunFiles, begun_at: str) -> None:
        """Take out of a run when it was made, and say in it what paid for it."""
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        run.checkpoints.mkdir()
        copied = run.ledger.with_name("ledger.part")
        copied.unlink(missing_ok=True)
        AppendOnlyFile.copy_at(run.ledger, copied, LEDGER_FORMAT, at=begun_at)
        copied.replace(run.ledger)
        certify(run, self.paid, name=self.name, budget=self.budget, created_on=begun_at[:10])


def number_of_trials(price: RepeatedSelection, key: RunKey) -> int:
    """How many there are: drawn once, for it is always the same for one key."""
    return price.trials(float(key.at(0, 0).uniforms("number of trials", 1)[0]))


def _was_begun_anew(trial: Path) -> bool:
    """Whether a run that went on could not repeat itself to the bit, and so ended early: it is then no whole trial."""
    return len(lines_file.read(RunFiles(trial).attempts)) > 1


def _destroy(folder: Path, *, last: Path | None = None) -> None:
    """Remove a folder, keys first: what is left of the rest says nothing without them. ``last`` stays until the end."""
    if not folder.is_dir():
        return
    for key in folder.rglob("key"):
        RunKey.destroy(key)
    for path in folder.iterdir():
        if path != last:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(folder)
    whole_file.flush_folder(folder.parent)


def _moment(begun_at: str) -> float:
    return datetime.fromisoformat(begun_at).timestamp()


@contextmanager
def _held(files: SelectionFiles) -> Iterator[None]:
    held = lock.taken(files.lock, for_what=f"the search in {files.directory}")
    try:
        yield
    finally:
        os.close(held)
