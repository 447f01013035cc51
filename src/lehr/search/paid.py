"""Searches on private records: their price, their budget, and the two ways to pay.

``paid_search`` fixes the price and one plan for all trials before the first one. The whole search is reserved in the
budget of the data set; nothing is given back, since that would reveal how much was used, and when.

*Composition* (``PaidStudy``): a fixed number of trials, all charged, so that all may be shown. It is a study in which
every trial has the same plan; the certificate of each is for all of them.

*Repeated selection* (``Selection``): a secret random number of independent trials, of which only the best is shown.

    SEARCH/
        search.json     the request, the plan of a trial and the price, from before the first trial; public
        private/        while the search runs, mode 0700: the key, the progress, the best trial, the running one
        winner/         the run folder of the best trial, once the search is over, with its settings.json

The number of trials, their settings and their first weights follow from the key, so a search that was killed is resumed
as it began. At the end the key and every trial but the winner are destroyed. Nothing that is kept or shown depends on
how many trials there were: no name, number or time. Why that is needed: planning/search_cost.proof.md.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from lehr import accounting, validate
from lehr.accounting.claims import Claim
from lehr.accounting.events import Event, counted
from lehr.accounting.ledger import LEDGER_FORMAT
from lehr.certificates import issuing, run_reading
from lehr.certificates.certificate import read_certificate, write_certificate
from lehr.config import as_json
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.files.append_only import AppendOnlyFile, check_name
from lehr.planning import search_cost
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import PRIVATE, Plan
from lehr.planning.search_cost import (
    Composition,
    RepeatedSelection,
    SearchPrice,
    SearchTrial,
    check_searchable,
    plan_for,
)
from lehr.privacy.rng import RunKey
from lehr.reports import run_page
from lehr.reports.progress import SearchCallback, TrialRow
from lehr.run.folder import differences, refuse_used
from lehr.run.shape import RunFiles
from lehr.search.request import ACCURACY, Search, check_records, check_space
from lehr.search.space import Space, usual_space
from lehr.search.study import DATABASE, Study, TrialOutcome, run_trial
from lehr.training.ending import dataset_of, shared_budget
from lehr.training.prepare import check_statements, run_plan

RANDOM, BATCH_FACTOR = "random", "batch_factor"
NUM_CHECKED_SETTINGS = 64  # random settings whose event is checked before the first trial
SAME_EVENT = "of settings with which every trial does the same to the records"


@dataclass(frozen=True, kw_only=True)
class PaidSearch:
    """A search, its price, and the plan and the event of every trial."""

    search: Search
    price: SearchPrice
    plan: Plan
    trial_event: Event

    @property
    def event(self) -> Event:
        """The event of the whole search."""
        return self.price.event(self.trial_event)

    def claim(self) -> Claim:
        """The guarantee of the whole search."""
        return accounting.claim(self.event, delta=self.plan.delta, adjacency=self.plan.adjacency)

    def fit_options(self) -> dict[str, Any]:
        """The options of ``fit`` that mark a run as a trial, with the statements of its certificate."""
        trial = SearchTrial(price=self.price, event=self.trial_event)
        stated = self.search.configuration.privacy.get("stated")
        if stated is None:
            return {"trial_of": trial, "settings_chosen_on": PRIVATE}
        return {"trial_of": trial, "stated": check_statements({**as_json(stated), "settings_chosen_on": PRIVATE})}

    def check_events(self, generator: torch.Generator) -> None:
        """Refuse a space in which settings change the event of a trial; random settings are checked."""
        check_space(self.search, plan=self.plan)
        for _ in range(NUM_CHECKED_SETTINGS):
            parameters = self.search.space.draw(generator)
            event = run_plan(self.search.trial(parameters, plan=self.plan)).event
            if counted(event) != counted(self.trial_event):
                allowed = f"{SAME_EVENT} ({self.trial_event})"
                raise InvalidValue("[search.space]", allowed=allowed, given=f"{parameters}, which does {event}")


def paid_search(search: Search, price: SearchPrice, *, epsilon: float | None = None) -> PaidSearch:
    """The search with the least noise at which all of it stays within ε, or with the noise of its configuration."""
    if epsilon is not None:
        search = replace(search, configuration=search.configuration.with_values(privacy={"epsilon": epsilon}))
    _check_payable(search, price)
    configuration, plan = search.configuration, search.plan
    if search.space == usual_space(configuration, plan, searched_on=configuration.data):
        usual = search.space.distributions
        search = replace(search, space=Space({name: usual[name] for name in usual if name != BATCH_FACTOR}))
    for name in search.space.distributions:
        if name == BATCH_FACTOR or name.startswith("privacy."):
            raise InvalidValue("[search.space]", allowed=SAME_EVENT, given=name)
    check_searchable(plan)
    if "epsilon" in configuration.privacy:
        beside = run_plan(configuration.with_plan(plan)).beside
        plan = plan_for(price, plan, epsilon=configuration.privacy["epsilon"], beside=beside)
    trial_event = run_plan(configuration.with_plan(plan)).event
    return PaidSearch(search=search, price=price, plan=plan, trial_event=trial_event)


def _check_payable(search: Search, price: SearchPrice) -> None:
    privacy, declared = search.configuration.privacy, search.declared
    noise = privacy.get("noise_multiplier")
    refused: list[tuple[bool, str, str, object]] = [
        (search.data is not None, "[search.data]", "left out: a paid search uses the records of [data]", search.data),
        (declared != PRIVATE, "pay", f"left out on {declared} records: a search on them is free", price),
        (
            "simulated_batch_size" in privacy,
            "simulated_batch_size",
            "left out on private records: a simulation has next to no noise, and would protect nobody",
            privacy.get("simulated_batch_size"),
        ),
        (privacy.get("accounting") == "published", "accounting", "proven on private records", "published"),
        ("epsilon" in privacy and noise is not None, "noise_multiplier", "left out where epsilon is given", noise),
    ]
    if isinstance(price, RepeatedSelection):  # its theorem is about independent, whole trials in a secret number
        independent = "random: the trials of a selection must be independent"
        secret = "left out: whoever could draw the settings again would see which trial has won"
        refused += [
            (search.sampler != RANDOM, "sampler", independent, search.sampler),
            (search.pruner != "none", "pruner", "none: every trial of a selection is a full run", search.pruner),
            (search.seed is not None, "seed", secret, search.seed),
        ]
    for is_refused, name, allowed, given in refused:
        if is_refused:
            raise InvalidValue(name, allowed=allowed, given=given)


@dataclass(frozen=True, kw_only=True, eq=False)
class _PaidRun:
    """A paid search in a folder. ``options`` go to every call of ``fit``: the device and the like."""

    paid: PaidSearch
    directory: Path
    name: str
    budget: Path | None = None
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_name(name=self.name)

    def _request(self) -> dict[str, object]:
        """What the search is, to be compared when it is resumed."""
        return {
            "name": self.name,
            "plan": self.paid.plan.to_json(),
            "price": search_cost.to_json(self.paid.price),
            "budget": None if self.budget is None else dataset_of(self.budget),
        }

    def _check_new(self, key: RunKey) -> None:
        """Refuse what cannot be searched, before anything is written."""
        self.paid.claim()
        self.paid.check_events(key.at(0, 0).generator("settings looked at", "cpu"))
        check_records(self.paid.search, data_dir=(self.options or {}).get("data_dir"))
        refuse_used(self.directory)

    def _check_resumed(self, path: Path, *, pop: Sequence[str]) -> list[Any]:
        """Refuse a search that began as another one; return the values under the names ``pop`` of its file."""
        kept = strict_json.read(path, strict_json.check_table)
        popped = [kept.pop(name, None) for name in pop]
        request = strict_json.check_table(strict_json.loads(strict_json.dumps(self._request())))
        if differing := differences(kept, request):
            raise InvalidValue("search", allowed=f"resumed as it began ({path})", given="; ".join(differing))
        return popped

    @property
    def entries(self) -> dict[str, Event]:
        """What the budget reserves, by name."""
        event, cost = self.paid.price.certified(self.paid.trial_event)
        return {self.name: event} | ({} if cost is None else {f"{self.name}, the other trials": cost})

    def reserve(self, run_id: str | None) -> None:
        """Charge the whole search, unless that is done. Nothing is given back: that would reveal how much was used.

        It is for a search of which no trial began: a process may be killed before or after this, and does it again.
        """
        if self.budget is None or run_id is None:
            return
        with Budget.open(self.budget) as account:
            adjacency = account.status().adjacency
            if adjacency is not self.paid.plan.adjacency:
                allowed, given = f"that of the budget, {adjacency.value}", self.paid.plan.adjacency.value
                raise InvalidValue("adjacency", allowed=allowed, given=given)
            if not self._reserved(account, run_id):
                account.charge(self.entries, run_id=run_id, unit=self.paid.plan.unit)

    def check_reserved(self, run_id: str | None) -> None:
        """Refuse to resume a search that the budget has not reserved, or has given back."""
        if self.budget is None:
            return
        with Budget.open(self.budget) as account:
            if missing := self.entries.keys() - self._reserved(account, run_id).keys():
                allowed = f"one that has reserved for {', '.join(map(repr, sorted(missing)))}"
                raise InvalidValue("budget", allowed=allowed, given=str(self.budget))

    def _reserved(self, account: Budget, run_id: str | None) -> dict[str, RunStatus]:
        """What of the search the budget has reserved; refused where another has its name, or it was given back."""
        entries = self.entries
        found = {run.run: run for run in account.status().runs if run.run in entries}
        for run, status in found.items():
            if status.run_id != run_id:
                allowed = "one that the budget has not seen yet: each search has its own"
                raise InvalidValue("name", allowed=allowed, given=run)
            if status.charged != entries[run]:
                allowed = f"one that has reserved {entries[run]} for {run!r}"
                raise InvalidValue("budget", allowed=allowed, given=f"one that has {status.charged}")
        return found

    def certify(self, run: RunFiles, *, created_on: str | None = None) -> None:
        """Issue a certificate again: with the budget if there is one, and of the day ``created_on`` if it is given.

        The day on which a trial ended hints at its place in the search, and the day on which the search ended at the
        number of its trials. What is certified was fixed on the first day.
        """
        config = strict_json.read(run.config, strict_json.check_table)
        changed = {"budget": self._request()["budget"], "created_on": created_on or config["created_on"]}
        strict_json.write(run.config, {**config, **changed}, overwrite=True)
        event, cost = self.paid.price.certified(self.paid.trial_event)
        certificate = issuing.issue(
            event,
            delta=self.paid.plan.delta,
            adjacency=self.paid.plan.adjacency,
            stated=read_certificate(run.certificate).stated,
            settings_cost=cost,
            budget=None if self.budget is None else shared_budget(self.budget, self.name),
        )
        if created_on is not None:
            certificate = replace(certificate, issued_on=created_on)
        write_certificate(run.certificate, certificate, overwrite=True)
        atomic.write(run.report, run_page.render(run_reading.read_run(run.directory)), overwrite=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class PaidStudy(_PaidRun):
    """A composition: a study in which all trials are charged."""

    @property
    def price(self) -> Composition:
        """How many trials are paid for."""
        if not isinstance(self.paid.price, Composition):
            raise InvalidValue("price", allowed="a Composition", given=self.paid.price)
        return self.paid.price

    @property
    def study(self) -> Study:
        """The trials, in this folder alone: other folders could not see how many are begun here."""
        return Study(
            search=replace(self.paid.search, trials=self.price.trials),
            plan=self.paid.plan,
            directory=self.directory,
            name="search",
            options={**(self.options or {}), "name": self.name, **self.paid.fit_options()},
        )

    def run(self, callbacks: Sequence[SearchCallback] = ()) -> list[TrialRow]:
        """Reserve all trials, run those that are left, and certify each with the budget."""
        study, path = self.study, self.directory / "price.json"
        if not path.exists():
            self._begin(path)
        if not (self.directory / DATABASE).exists():  # all trials would be run again, unpaid
            raise StoreError(f"cannot resume in {self.directory}: {DATABASE}, which knows its trials, is gone")
        (run_id,) = self._check_resumed(path, pop=("run_id",))
        if not (self.directory / "trials").exists():
            self.reserve(run_id)
        self.check_reserved(run_id)
        rows = study.run(callbacks)
        for row in rows if self.budget is not None else ():
            run = RunFiles(study.trial_directory(row.number))
            if run.certificate.exists():
                self.certify(run)
        return rows

    def _begin(self, path: Path) -> None:
        self._check_new(RunKey.fresh())
        run_id, lock = secrets.token_hex(16), "locks/begin"
        with atomic.new_folder(self.directory, locked_by=lock) as hidden:
            _ = replace(self.study, directory=hidden).study  # creates the database
            strict_json.write(hidden / path.name, {**self._request(), "run_id": run_id})
        with atomic.remove_if_refused(self.directory, locked_by=lock):
            self.reserve(run_id)


FORMAT, FORMAT_VERSION = "lehr-selection", 1
SETTINGS = "settings.json"
WON, LOST, TIDY, OVER = LAST = ("won", "lost", "tidy", "over")


class SelectionFiles:
    """The paths of a selection."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.request, self.winner, self.private = (directory / name for name in ("search.json", "winner", "private"))
        self.key, self.lock, self.progress = (self.private / name for name in ("key", "lock", "progress.json"))
        self.trial, self.best = self.private / "trial", self.private / "best"


@dataclass(frozen=True, kw_only=True)
class SelectionProgress:
    """The number of trials that are over, the best score, and what became of the last trial."""

    trials: int = 0
    best: float | None = None
    last: str = TIDY

    def after(self, outcome: TrialOutcome, score: str) -> SelectionProgress:
        """The progress after one more trial. The first of equal scores is kept; a trial without a model never wins."""
        worth = outcome.score if score == ACCURACY else -outcome.score
        is_better = not outcome.note and math.isfinite(worth) and (self.best is None or worth > self.best)
        return SelectionProgress(
            trials=self.trials + 1, best=worth if is_better else self.best, last=WON if is_better else LOST
        )

    @classmethod
    def from_json(cls, shape: object) -> SelectionProgress:
        """The progress of a JSON form."""
        given: dict[str, Any] = strict_json.fields("progress", shape, ("trials", "best", "last"))
        best = None if given["best"] is None else validate.finite(best=given["best"])
        trials = validate.count(minimum=0, trials=given["trials"])
        return cls(trials=trials, best=best, last=validate.one_of(LAST, last=given["last"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection(_PaidRun):
    """A repeated selection: a secret number of trials, of which only the best is kept."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.price

    @property
    def price(self) -> RepeatedSelection:
        """The distribution of the number of trials."""
        if not isinstance(self.paid.price, RepeatedSelection):
            raise InvalidValue("price", allowed="a RepeatedSelection", given=self.paid.price)
        return self.paid.price

    @property
    def files(self) -> SelectionFiles:
        """The paths."""
        return SelectionFiles(self.directory)

    def run(self) -> Path | None:
        """Run the trials that are left; return the folder of the winner, or None where no trial has a model."""
        files, begun_at = self.files, self._open()
        with suppress(OSError):  # it is empty only where a finished search died in its last moment
            files.private.rmdir()
        if files.private.is_dir():
            with atomic.locked(files.lock, for_what=f"the search in {self.directory}"):
                if self._progress().last != OVER:
                    self._run_trials(RunKey.load(files.key))
                self._finish(begun_at)
        return files.winner if files.winner.is_dir() else None

    def _open(self) -> str:
        """Begin the search, or check that it is the one that began; return when it began."""
        files = self.files
        if not files.request.exists():
            self._begin()
        begun_at, run_id = self._check_resumed(files.request, pop=("begun_at", "run_id"))
        if files.private.is_dir():
            if not files.progress.exists() and not files.trial.exists():
                self.reserve(run_id)
            self.check_reserved(run_id)
        return validate.text(begun_at=begun_at)

    def _begin(self) -> None:
        """Create the folder, whole or not at all, and reserve the whole search."""
        key = RunKey.fresh()
        self._check_new(key)
        lock = str(SelectionFiles(Path()).lock)
        begun_at, run_id = datetime.now(UTC).isoformat(timespec="minutes"), secrets.token_hex(16)
        with atomic.new_folder(self.directory, locked_by=lock) as hidden:
            files = SelectionFiles(hidden)
            atomic.write_private(files.private / ".gitignore", "*\n")
            key.save(files.key)
            strict_json.write(files.request, {**self._request(), "begun_at": begun_at, "run_id": run_id})
        with atomic.remove_if_refused(self.directory, locked_by=lock):
            self.reserve(run_id)

    def _request(self) -> dict[str, object]:
        own = {"format": FORMAT, "format_version": FORMAT_VERSION, "search": self.paid.search.to_json()}
        return {**own, **super()._request()}

    def _run_trials(self, key: RunKey) -> None:
        while (progress := self._tidy()).trials < number_of_trials(self.price, key):
            self._save(progress.after(self._run_trial(key, progress.trials), self.paid.search.score))
        self._save(replace(progress, last=OVER))

    def _run_trial(self, key: RunKey, place: int) -> TrialOutcome:
        """Run or resume one trial, silently."""
        search, trial, randomness = self.paid.search, self.files.trial, key.at(place, 0)
        parameters = search.space.draw(randomness.generator("settings of a trial", "cpu"))
        configuration = search.trial(parameters, plan=self.paid.plan)
        seed = randomness.seed("first weights of a trial") >> 8  # within the range of a seed
        options = {"name": self.name, "seed": seed, **self.paid.fit_options(), **(self.options or {})}
        while True:
            with warnings.catch_warnings(action="ignore"):  # one for each trial would reveal their number
                outcome = run_trial(configuration, trial, score=search.score, **options)
            # More than one attempt: a resumed run could not be repeated to the bit, and is not a whole trial.
            if len(strict_json.read_lines(RunFiles(trial).attempts)) <= 1:
                if trial.is_dir():
                    strict_json.write(trial / SETTINGS, search.space.settings(parameters), overwrite=True)
                return outcome
            _destroy(trial)

    def _tidy(self) -> SelectionProgress:
        """The progress, with the last trial kept as the best one or destroyed."""
        files, progress = self.files, self._progress()
        if progress.last == WON and files.trial.exists():
            _destroy(files.best)
            files.trial.rename(files.best)
        if progress.last == LOST:
            _destroy(files.trial)
        tidy = replace(progress, last=TIDY)
        if tidy != progress:
            self._save(tidy)
        return tidy

    def _progress(self) -> SelectionProgress:
        path = self.files.progress
        return strict_json.read(path, SelectionProgress.from_json) if path.exists() else SelectionProgress()

    def _save(self, progress: SelectionProgress) -> None:
        atomic.write_private(self.files.progress, strict_json.text(asdict(progress)))

    def _finish(self, begun_at: str) -> None:
        """Move the winner to its place, and destroy everything else. After a crash this is done again."""
        files = self.files
        if files.best.is_dir():
            self._remove_times(RunFiles(files.best), begun_at)
            files.best.rename(files.winner)
        self._set_file_times(begun_at)  # before the rest is gone: without it, the search would not be resumed
        _destroy(files.private, last=files.progress)
        self._set_file_times(begun_at)

    def _set_file_times(self, begun_at: str) -> None:
        """Give all files the time at which the search began."""
        files = self.files
        kept = (path for path in (files.request, files.winner, *files.winner.rglob("*")) if path.exists())
        moment = datetime.fromisoformat(begun_at).timestamp()
        for path in (*kept, files.directory):
            os.utime(path, (moment, moment))

    def _remove_times(self, run: RunFiles, begun_at: str) -> None:
        """Remove from a run when it was made, and certify it with the budget."""
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        run.checkpoints.mkdir()
        copied = run.ledger.with_name("ledger.part")
        copied.unlink(missing_ok=True)
        AppendOnlyFile.copy_at(run.ledger, copied, LEDGER_FORMAT, at=begun_at)
        copied.replace(run.ledger)
        self.certify(run, created_on=begun_at[:10])


def number_of_trials(price: RepeatedSelection, key: RunKey) -> int:
    """The number of trials, which is always the same for one key."""
    return price.trials(float(key.at(0, 0).uniforms("number of trials", 1)[0]))


def _destroy(folder: Path, *, last: Path | None = None) -> None:
    """Remove a folder, keys first: without them the rest reveals nothing. ``last`` is removed last."""
    if not folder.is_dir():
        return
    for key in folder.rglob("key"):
        RunKey.destroy(key)
    for path in folder.iterdir():
        if path != last:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(folder)
    atomic.flush_folder(folder.parent)
