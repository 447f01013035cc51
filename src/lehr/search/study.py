"""A study: the trials of a search in a folder and a database, which survives any crash, on one machine or many.

*Storage.* SQLite serves the processes of one machine. Machines share a study over
``postgresql+psycopg://user@host/name``, with ``pip install 'psycopg[binary]'``.

*Sampling.* Every trial has a generator seeded by the study's seed and the trial's number, so a search that is resumed
draws what it would have drawn. CMA-ES is left out: Optuna keeps its state as a pickle, so whoever may write to the
database could run code on every machine of the study.

*Queue.* Trials are created as waiting, and a process turns one into a running one, which the database allows once. Its
owner holds a file lock in its folder, which the system releases when the owner dies. The next process in the same
folder resumes running trials whose lock is free, from their checkpoints. A trial of another folder, perhaps on another
machine, is failed when it was not seen for ``SECONDS_UNSEEN``, and its settings are queued again. There are never more
trials than were asked for: the first ones that did not fail count, and the database numbers them one by one.

*Scoring.* A trial is scored by its last evaluation. A run that diverges, or cannot be built from its settings, gets the
worst score and a note. A failure of the machine or of files stops the search, which can be resumed.

*Result.* ``finish`` writes the winner as a configuration, and a page with all trials.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna import pruners, samplers
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from lehr import validate
from lehr.config import RunConfig, as_json
from lehr.errors import (
    AccountantFailed,
    Diverged,
    InvalidValue,
    LehrError,
    NotPrivate,
    StoreError,
    Unreachable,
    UnsupportedEvent,
)
from lehr.files import atomic, strict_json, toml_text
from lehr.planning.plan import PRIVATE, PUBLIC, Plan
from lehr.privacy.rng import RunKey
from lehr.reports import search_page
from lehr.reports.progress import DONE, FAILED, PRUNED, RUNNING, SearchCallback, TrialRow, best_of, score_text
from lehr.rounding import at_most, exactly
from lehr.run.folder import differences
from lehr.run.shape import Callback, Evaluation, Progress, RunFiles, Start
from lehr.search.request import ACCURACY, Search, check_records, check_space
from lehr.search.space import Distribution, Parameters, Value
from lehr.training.fit import fit
from lehr.training.prepare import method_and_plan

DATABASE, WINNER, PAGE = "study.db", "winner.toml", "report.html"
SECONDS_TO_WAIT = 120  # for other processes that write to the same file
SECONDS_UNSEEN = 1800.0
SECONDS_BETWEEN_SIGHTS = 60.0
FOLDER, SEEN_AT, SEARCH, SEED, NOTE, BEGUN = "folder", "seen_at", "search", "seed", "note", "begun"
BAD_SETTINGS = (InvalidValue, NotPrivate, Unreachable, UnsupportedEvent, AccountantFailed)
SAMPLERS = ("tpe", "random", GRID := "grid", "qmc", "gp")
PRUNERS: dict[str, Callable[[], pruners.BasePruner]] = {
    "none": pruners.NopPruner,
    "median": pruners.MedianPruner,
    "hyperband": pruners.HyperbandPruner,
    "successive-halving": pruners.SuccessiveHalvingPruner,
}


def open_storage(directory: Path, url: str | None = None) -> optuna.storages.RDBStorage:
    """The database at this address, or a file in the folder, with Optuna's tables. Errors do not show its password."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        file = URL.create("sqlite", database=str((directory / DATABASE).absolute()))
        address = file if url is None else make_url(url)
    except SQLAlchemyError as error:
        allowed = "an address such as sqlite:///study.db or postgresql+psycopg://user@host/name"
        raise InvalidValue("storage", allowed=allowed, given="something else") from error
    is_sqlite = address.get_backend_name() == "sqlite"
    # pool_pre_ping: hours may pass between two evaluations, and the connection may be lost meanwhile.
    options = {"connect_args": {"timeout": SECONDS_TO_WAIT}} if is_sqlite else {"pool_pre_ping": True}
    try:
        return optuna.storages.RDBStorage(address.render_as_string(hide_password=False), engine_kwargs=options)
    except (ImportError, SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        if isinstance(error, ImportError):
            reason = f"no driver for {address.drivername} is installed ({reason})"
        raise StoreError(f"cannot use {address.render_as_string(hide_password=True)}: {reason}") from error


def sampler_for(name: str, *, seed: int, number: int) -> samplers.BaseSampler:
    """The sampler of this name for the trial of this number. The trials of a grid have fixed settings."""

    def seed_of(place: int) -> int:
        return int.from_bytes(hashlib.sha256(f"lehr.search/{seed}/{place}".encode()).digest()[:4], "big")

    independent = samplers.RandomSampler(seed=seed_of(number))
    options: dict[str, Any] = {"independent_sampler": independent, "warn_independent_sampling": False}
    match validate.one_of(SAMPLERS, sampler=name):
        case "gp":
            return samplers.GPSampler(seed=seed_of(number), **options)
        case "qmc":  # one sequence for the whole study; the position in it is in the database
            with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
                return samplers.QMCSampler(scramble=True, seed=seed_of(-1), **options)
        case "tpe":
            return samplers.TPESampler(seed=seed_of(number))
    return independent


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """How a trial ended. A note says why it has the worst score."""

    score: float
    note: str = ""
    is_pruned: bool = False


def run_trial(
    configuration: RunConfig, directory: Path, *, score: str, callbacks: Sequence[Callback] = (), **options: Any
) -> TrialOutcome:
    """Train in this folder, or resume the run in it, and return how that ended. ``options`` go to ``fit``."""
    worst = 0.0 if score == ACCURACY else math.inf
    is_resumed = has_begun(directory)
    if not is_resumed and directory.exists():
        shutil.rmtree(directory)  # a process died while it made the folder: no run began in it
    try:
        run = fit(
            config=configuration, directory=directory, resume=is_resumed, callbacks=callbacks, silent=True, **options
        )
    except optuna.TrialPruned:
        return TrialOutcome(score=math.nan, is_pruned=True)
    except Diverged as error:
        return TrialOutcome(score=worst, note=str(error))
    except torch.OutOfMemoryError:
        return TrialOutcome(score=worst, note="does not fit into the memory of the device")
    except BAD_SETTINGS as error:
        if is_resumed or has_begun(directory):  # the settings were good enough to begin: something else is wrong
            raise
        return TrialOutcome(score=worst, note=str(error))
    reached = getattr(run.evaluations[-1], score)
    if reached is None:
        raise InvalidValue("score", allowed="loss: a regression has no accuracy", given=score)
    return TrialOutcome(score=float(reached))


def has_begun(directory: Path) -> bool:
    """Whether a run began in this folder, so that it can be resumed."""
    return RunFiles(directory).config.exists()


class TrialReporter(Callback):
    """Writes to the study that a run began, that it is alive, and its evaluations; stops it where it is pruned."""

    def __init__(self, trial: Trial, directory: Path, *, score: str, clock: Callable[[], float] = time.time) -> None:
        self._trial, self._score, self._clock = trial, score, clock
        self._metrics = RunFiles(directory).metrics
        self._steps, self._seen_at = math.inf, -math.inf

    def started(self, start: Start) -> None:
        """Write down that the run begins, before it looks at a record."""
        self._steps = start.steps
        with suppress(UpdateFinishedTrialError):  # failed by another process; the result is dropped at the end
            self._trial.set_user_attr(BEGUN, True)

    def stepped(self, progress: Progress) -> None:
        """Write down, not too often, that the run is alive."""
        if (now := self._clock()) - self._seen_at >= SECONDS_BETWEEN_SIGHTS:
            self._seen_at = now
            with suppress(UpdateFinishedTrialError):
                self._trial.set_user_attr(SEEN_AT, now)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Report the score under the number of the evaluation, which means the same in runs of any length."""
        value, number = getattr(evaluation, self._score), len(strict_json.read_lines(self._metrics))
        if math.isfinite(value):
            try:
                with warnings.catch_warnings(action="ignore"):  # a resumed run evaluates some steps again
                    self._trial.report(value, number)
            except UpdateFinishedTrialError:  # another process thought that this one had died, and started it again
                raise optuna.TrialPruned from None
        if evaluation.step < self._steps and self._trial.should_prune():
            raise optuna.TrialPruned


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """The trials of a search in a folder. ``options`` go to every call of ``fit``: the device and the like.

    A search on private records must be paid for: ``plan`` is then the plan of every trial.
    """

    search: Search
    directory: Path
    name: str
    plan: Plan | None = None
    url: str | None = None
    options: Mapping[str, Any] | None = None
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        validate.one_of(PRUNERS, pruner=self.search.pruner)
        validate.one_of(SAMPLERS, sampler=self.search.sampler)
        if self.plan is None and self.search.declared == PRIVATE:
            allowed = (
                "public or synthetic for a free search, in [data] or in [search.data], whose records are then used; "
                "on private records the search must be paid for (--pay selection, or --pay composition)"
            )
            raise InvalidValue("declared", allowed=allowed, given=PRIVATE)

    @property
    def terms(self) -> str:
        """What the search costs, in words."""
        if self.plan is None:
            return f"free: the records that are searched on are declared {self.search.declared}"
        return f"paid for: {self.search.trials} trials on private records, all of them charged"

    def run(self, callbacks: Sequence[SearchCallback] = ()) -> list[TrialRow]:
        """Run the trials that are left. A new study is refused where one of its settings is impossible."""
        if not self._mark.exists():
            check_space(self.search, plan=self.plan)
            check_records(self.search, data_dir=(self.options or {}).get("data_dir"))
        _ = self._folder  # created, or refused
        for callback in callbacks:
            callback.began(self.rows(), trials=self.search.trials, score=self.search.score)
        try:
            while (claimed := self.claim()) is not None:
                self._work_on(*claimed, callbacks)
        finally:
            for callback in callbacks:
                callback.closed(self.rows())
        return self.rows()

    def rows(self) -> list[TrialRow]:
        """The trials that began, without failed ones: others took their places."""
        with self._database():
            trials = self.study.get_trials(deepcopy=False)
            return [self._row(each) for each in trials if each.state not in (TrialState.FAIL, TrialState.WAITING)]

    def trial_directory(self, number: int) -> Path:
        """The run folder of a trial."""
        return self.directory / "trials" / str(number)

    @cached_property
    def storage(self) -> optuna.storages.RDBStorage:
        """The database itself."""
        return open_storage(self.directory, self.url)

    @cached_property
    def study(self) -> optuna.Study:
        """The study in its database, created if there is none; one of another search is refused."""
        with _folder_lock(self.directory), self._database():
            study = optuna.create_study(
                storage=self.storage,
                study_name=self.name,
                direction="maximize" if self.search.score == ACCURACY else "minimize",
                pruner=PRUNERS[self.search.pruner](),
                load_if_exists=True,
            )
            search = strict_json.loads(strict_json.dumps({**self.search.to_json(), "terms": self.terms}))
            before, _ = study.user_attrs.get(SEARCH), study.get_trials()
            if before is None:
                seed = RunKey.fresh_attempt() if self.search.seed is None else self.search.seed
                study.set_user_attr(SEED, seed)
                study.set_user_attr(SEARCH, search)
            elif differing := differences(strict_json.check_table(before), strict_json.check_table(search)):
                allowed = f"resumed as it began, or in another folder than {self.directory}"
                raise InvalidValue("study", allowed=allowed, given="; ".join(differing))
        return study

    @property
    def _mark(self) -> Path:
        return self.directory / "search.json"

    @cached_property
    def _folder(self) -> str:
        """The random name of this folder in the database."""
        _ = self.study
        with _folder_lock(self.directory):
            if not self._mark.exists():
                strict_json.write(self._mark, {"folder": f"{RunKey.fresh_attempt():x}", "study": self.name})
        mark = strict_json.read(self._mark, strict_json.check_table)
        if mark.get("study") != self.name:
            raise StoreError(f"{self.directory} belongs to the study {mark.get('study')!r}: name another folder")
        return validate.text(folder=mark.get("folder"))

    def claim(self) -> tuple[Trial, int] | None:
        """A trial that this process owns from now on, and its lock; None where all are done or owned by others."""
        folder, locks = self._folder, self.directory / "locks"
        locks.mkdir(exist_ok=True)
        with _folder_lock(self.directory), self._database():
            self._fill_queue()
            for trial in self._counted():
                is_own = trial.state == TrialState.RUNNING and self._is_here(trial)
                if not is_own and trial.state != TrialState.WAITING:
                    continue
                try:
                    lock = atomic.take_lock(locks / str(trial.number), for_what=f"trial {trial.number}")
                except StoreError:  # another process of this folder works on it
                    continue
                if is_own or self._set_state(trial, TrialState.RUNNING):
                    for name, value in {FOLDER: folder, SEEN_AT: self.clock()}.items():
                        self.storage.set_trial_user_attr(trial._trial_id, name, value)
                    # Optuna keeps a copy of its database, in which a new trial is missing.
                    self.study.get_trials(deepcopy=False)
                    sampler = self.search.sampler
                    self.study.sampler = sampler_for(sampler, seed=self.study.user_attrs[SEED], number=trial.number)
                    return Trial(self.study, trial._trial_id), lock
                os.close(lock)
        return None

    def _fill_queue(self) -> None:
        """Queue trials until there are enough; those of other folders that are silent for long are queued again."""
        for trial in self._counted():
            if trial.state == TrialState.RUNNING and not self._is_here(trial):
                began_at = 0.0 if trial.datetime_start is None else trial.datetime_start.timestamp()
                is_silent = not self.clock() - trial.user_attrs.get(SEEN_AT, began_at) < SECONDS_UNSEEN
                if is_silent and self._set_state(trial, TrialState.FAIL):
                    self.study.enqueue_trial(trial.params)
        trials = self._counted()
        queue: list[Parameters] = [{}] * self.search.trials
        if self.search.sampler == GRID:
            tried = [trial.system_attrs.get("fixed_params") for trial in trials]
            queue = [combination for combination in self.search.space.combinations() if combination not in tried]
        for parameters in queue[: self.search.trials - len(trials)]:
            self.study.enqueue_trial(parameters)

    def _is_here(self, trial: FrozenTrial) -> bool:
        """Whether a trial is worked on in this folder. One that is paid for always is: it must not begin elsewhere."""
        return self.plan is not None or trial.user_attrs.get(FOLDER) == self._folder

    def _counted(self) -> list[FrozenTrial]:
        """The trials that count: the first ones that did not fail."""
        trials = self.storage.get_all_trials(self.storage.get_study_id_from_name(self.name))
        return [trial for trial in trials if trial.state != TrialState.FAIL][: self.search.trials]

    def _set_state(self, trial: FrozenTrial, state: TrialState) -> bool:
        """Whether it was this process that changed the state."""
        try:
            return self.storage.set_trial_state_values(trial._trial_id, state)
        except UpdateFinishedTrialError:
            return False

    def _work_on(self, trial: Trial, lock: int, callbacks: Sequence[SearchCallback]) -> None:
        number, directory, score = trial.number, self.trial_directory(trial.number), self.search.score
        try:
            with self._database():
                distributions = self.search.space.distributions
                parameters = self.search.space.choose(lambda name: _suggest(trial, name, distributions[name]))
            for callback in callbacks:
                callback.trying(number, parameters)
            if self.plan is not None and trial.user_attrs.get(BEGUN) and not has_begun(directory):
                raise StoreError(
                    f"cannot resume trial {number}: it had begun, and its folder {directory} is gone; "
                    "starting again would use the records a second time, which is not paid for"
                )
            reporter = TrialReporter(trial, directory, score=score, clock=self.clock)
            outcome = run_trial(
                self.search.trial(parameters, plan=self.plan),
                directory,
                score=score,
                callbacks=(reporter, *callbacks),
                **{"seed": self.search.seed, **(self.options or {})},
            )
            # Another process may have failed the trial meanwhile, and started it again.
            if self.study.trials[number].state == TrialState.RUNNING:
                if outcome.note:
                    trial.set_user_attr(NOTE, outcome.note)
                value = None if outcome.is_pruned else outcome.score
                self.study.tell(number, value, state=TrialState.PRUNED if outcome.is_pruned else None)
        finally:
            os.close(lock)
        for callback in callbacks:
            callback.tried(self._row(self.study.trials[number]), self.rows())

    def _row(self, trial: FrozenTrial) -> TrialRow:
        words = {TrialState.RUNNING: RUNNING, TrialState.PRUNED: PRUNED, TrialState.FAIL: "given up"}
        note = str(trial.user_attrs.get(NOTE, ""))
        # On private records the duration follows how many were drawn, which no noise hides.
        duration = trial.duration if self.plan is None else None
        return TrialRow(
            number=trial.number,
            state=words.get(trial.state, FAILED if note else DONE),
            score=trial.value if trial.state == TrialState.COMPLETE and not note else None,
            parameters=dict(trial.params),
            note=note,
            seconds=None if duration is None else duration.total_seconds(),
        )

    @contextmanager
    def _database(self) -> Iterator[None]:
        """Turn whatever Optuna raises about a damaged database into a ``StoreError``."""
        try:
            yield
        except LehrError:
            raise
        except Exception as error:
            reason = f"its database is damaged ({type(error).__name__}: {error})"
            raise StoreError(f"cannot use {self.directory}: {reason}") from error


@contextmanager
def _folder_lock(directory: Path) -> Iterator[None]:
    """Wait for the other processes of one folder."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _suggest(trial: Trial, name: str, distribution: Distribution) -> Value:
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)  # type: ignore[return-value]  # none is None
    low, high = distribution.low, distribution.high
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(name, int(low), int(high), step=distribution.step)
    return trial.suggest_float(name, low, high, step=distribution.step, log=distribution.log)


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The best trial, if any was scored, its configuration, and the page."""

    best: TrialRow | None
    winner: Path | None
    page: Path


def finish(study: Study, rows: Sequence[TrialRow]) -> SearchResult:
    """Write the winner as a configuration, and the page, over those that there are."""
    search, page = study.search, study.directory / PAGE
    best, winner = best_of(rows, score=search.score), None
    if best is not None:
        winner = study.directory / WINNER
        chosen = winning_configuration(search, dict(best.parameters), on=PUBLIC if study.plan is None else PRIVATE)
        about = toml_text.comment(_about(study, best, len(rows)))
        atomic.write(winner, f"{about}\n{chosen.to_toml()}", overwrite=True)
    text = search_page.render(
        rows,
        title=f"Search {study.name}",
        score=search.score,
        trials=search.trials,
        terms=study.terms,
        winner="" if winner is None else atomic.read(winner),
        names=list(search.space.distributions),
    )
    atomic.write(page, text, overwrite=True)
    return SearchResult(best=best, winner=winner, page=page)


def winning_configuration(search: Search, parameters: Parameters, *, on: str) -> RunConfig:
    """The run that the settings are for, which states on what kind of records they were chosen."""
    reference = search.reference(parameters)
    privacy: dict[str, Any] = {**reference.privacy}
    stated = {"settings_chosen_on": on}
    privacy |= {"stated": {**as_json(privacy["stated"]), **stated}} if "stated" in privacy else stated
    return reference.with_tables(privacy=privacy)


def _about(study: Study, best: TrialRow, num_trials: int) -> str:
    search, how = study.search, "at its full batch"
    if "simulated_batch_size" in search.configuration.privacy:
        how = "simulated by smaller batches; this is the run that they stand for"
    reached = f"{search.score} {score_text(best.score, score=search.score)}"
    about = f"Trial {best.number} of {num_trials}: {reached} while searching, {how}.\nThe search was {study.terms}."
    if "epsilon" not in search.configuration.privacy and best.parameters.get("batch_factor", 1) != 1:
        # With other batches at the same noise the run costs nearly the same ε.
        _, plan = method_and_plan(search.reference(dict(best.parameters)))
        cost, before = (at_most(each.bound().epsilon) for each in (plan, search.plan))
        about += f"\nOn private records this run would cost ε = {cost} at δ = {exactly(plan.delta)}; "
        about += f"with the batch as it was configured, {before}."
    if study.plan is not None:
        about += f"\nIts model is in trials/{best.number}. Training this file is another run, which is paid for again."
    return about
