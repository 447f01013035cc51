"""A study: the trials of a search in a folder and a database, which survives any crash, on one machine or many.

*Storage.* SQLite serves the processes of one machine. Machines share a study over
``postgresql+psycopg://user@host/name``, with ``pip install 'psycopg[binary]'``.

*Sampling.* Every trial has a generator seeded by the study's seed and the trial's number, so a search that is resumed
draws what it would have drawn. CMA-ES is left out: Optuna keeps its state as a pickle, so whoever may write to the
database could run code on every machine of the study.

*Claiming.* A trial is created as running, in one transaction, with the mark of the folder that it is worked on in. Its
owner holds a file lock in that folder, which the system releases when the owner dies. The next process in the same
folder resumes running trials whose lock is free, from their checkpoints. A trial of another folder, perhaps on another
machine, is failed when it was not seen for ``SECONDS_UNSEEN``; exactly one process can do that, and it starts the same
settings again. There are never more trials than were asked for: a trial counts only if fewer trials before it did not
fail, and the database numbers them one by one.

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

import torch

from lehr import validate
from lehr.config import RunConfig, as_json
from lehr.errors import (
    AccountantFailed,
    Diverged,
    InvalidValue,
    LehrError,
    MissingExtra,
    NotPrivate,
    StoreError,
    Unreachable,
    UnsupportedEvent,
)
from lehr.files import atomic, strict_json, toml_text
from lehr.planning.plan import PRIVATE
from lehr.privacy.rng import RunKey
from lehr.reports import search_page
from lehr.reports.progress import DONE, FAILED, PRUNED, RUNNING, SearchCallback, TrialRow, best_of, score_text
from lehr.rounding import at_most, exactly
from lehr.run.folder import differences
from lehr.run.shape import Callback, Evaluation, Progress, RunFiles, Start
from lehr.search.request import (
    ACCURACY,
    GRID,
    NO_PRUNER,
    PRUNERS,
    SAMPLERS,
    Search,
    SearchTerms,
    check_records,
    check_space,
)
from lehr.search.space import Choices, Dimension, Parameters, Value
from lehr.training.fit import fit
from lehr.training.prepare import method_and_plan

try:
    import optuna
    from optuna import pruners, samplers
    from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
    from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
    from sqlalchemy.engine import URL, make_url
    from sqlalchemy.exc import SQLAlchemyError
except ImportError as error:
    raise MissingExtra("optuna", extra="search") from error

DATABASE, WINNER, PAGE = "study.db", "winner.toml", "report.html"
SECONDS_TO_WAIT = 120  # for other processes that write to the same file
SECONDS_UNSEEN = 1800.0
SECONDS_BETWEEN_SIGHTS = 60.0
FOLDER, SEEN_AT, SEARCH, SEED, NOTE, BEGUN = "folder", "seen_at", "search", "seed", "note", "begun"
FIXED = "fixed_params"  # where Optuna looks for the settings that a trial must have
BAD_SETTINGS = (InvalidValue, NotPrivate, Unreachable, UnsupportedEvent, AccountantFailed)
PRUNER_OF: dict[str, Callable[[], pruners.BasePruner]] = {
    NO_PRUNER: pruners.NopPruner,
    "median": pruners.MedianPruner,
    "hyperband": pruners.HyperbandPruner,
    "successive-halving": pruners.SuccessiveHalvingPruner,
}


def url_for(directory: Path, given: str | None = None) -> str:
    """The address of the database: the one that is given, or a file in the folder of the study."""
    if given is None:
        return URL.create("sqlite", database=str((directory / DATABASE).absolute())).render_as_string()
    try:
        return make_url(given).render_as_string(hide_password=False)
    except SQLAlchemyError as error:
        allowed = "an address such as sqlite:///study.db or postgresql+psycopg://user@host/name"
        raise InvalidValue("storage", allowed=allowed, given="something else") from error  # it may hold a password


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """The database, with Optuna's tables in it. Errors do not show its password."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    address = make_url(url)
    is_sqlite = address.get_backend_name() == "sqlite"
    # pool_pre_ping: hours may pass between two evaluations, and the connection may be lost meanwhile.
    options = {"connect_args": {"timeout": SECONDS_TO_WAIT}} if is_sqlite else {"pool_pre_ping": True}
    try:
        return optuna.storages.RDBStorage(url, engine_kwargs=options)
    except (ImportError, SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        if isinstance(error, ImportError):
            reason = f"no driver for {address.drivername} is installed ({reason})"
        raise StoreError(f"cannot use {address.render_as_string(hide_password=True)}: {reason}") from error


@contextmanager
def storage_errors(directory: Path) -> Iterator[None]:
    """Turn whatever Optuna raises about a damaged database into a ``StoreError``."""
    try:
        yield
    except LehrError:
        raise
    except Exception as error:
        reason = f"its database is damaged ({type(error).__name__}: {error})"
        raise StoreError(f"cannot use {directory}: {reason}") from error


def pruner_by_name(name: str) -> pruners.BasePruner:
    """The pruner of this name. It counts evaluations."""
    return PRUNER_OF[validate.one_of(PRUNERS, pruner=name)]()


def sampler_for(name: str, *, seed: int, number: int) -> samplers.BaseSampler:
    """The sampler of this name for the trial of this number. The trials of a grid have fixed settings."""

    def seed_of(place: int) -> int:
        return int.from_bytes(hashlib.sha256(f"lehr.search/{seed}/{place}".encode()).digest()[:4], "big")

    independent = samplers.RandomSampler(seed=seed_of(number))
    options: dict[str, Any] = {"independent_sampler": independent, "warn_independent_sampling": False}
    match validate.one_of(SAMPLERS, sampler=name):
        case "random" | "grid":
            return independent
        case "gp":
            return samplers.GPSampler(seed=seed_of(number), **options)
        case "qmc":  # one sequence for the whole study; the position in it is in the database
            with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
                return samplers.QMCSampler(scramble=True, seed=seed_of(-1), **options)
        case _:
            return samplers.TPESampler(seed=seed_of(number))


@dataclass(eq=False)
class TrialClaim:
    """A trial that this process owns until it releases it."""

    number: int
    trial_id: int
    held: int
    storage: optuna.storages.BaseStorage
    clock: Callable[[], float] = time.time
    _seen_at: float = 0.0

    def seen(self) -> None:
        """Write down, not too often, that this process is alive."""
        if (now := self.clock()) - self._seen_at >= SECONDS_BETWEEN_SIGHTS:
            self._seen_at = now
            with suppress(UpdateFinishedTrialError):  # failed by another process; the result is dropped at the end
                self.storage.set_trial_user_attr(self.trial_id, SEEN_AT, now)

    def release(self) -> None:
        """Release the lock."""
        os.close(self.held)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialClaims:
    """Creates and finds the trials of a study for the processes that work in one folder."""

    storage: optuna.storages.BaseStorage
    study_id: int
    directory: Path
    folder: str
    combinations: Sequence[Parameters] | None = None  # of a grid
    clock: Callable[[], float] = time.time

    def next(self, *, limit: int) -> TrialClaim | None:
        """A trial to work on, or None where enough are done or being worked on."""
        with folder_lock(self.directory):
            trials = self._trials()
            for trial in trials:
                if (found := self._abandoned(trial, trials, limit)) is not None:
                    return found
            for trial in trials:
                if self._is_gone(trial) and self._fail(trial):
                    return self._create(trial.params)
            if sum(map(counts, trials)) >= limit:
                return None
            return self._create_next(trials, limit)

    def _create_next(self, trials: Sequence[FrozenTrial], limit: int) -> TrialClaim | None:
        fixed: Parameters = {}
        if self.combinations is not None:
            tried = [trial.system_attrs.get(FIXED) for trial in trials if counts(trial)]
            left = [combination for combination in self.combinations if combination not in tried]
            if not left:
                return None
            fixed = left[0]
        claim = self._create(fixed)
        if self._is_surplus(claim.number, self._trials(), limit):  # another machine was faster
            self.storage.set_trial_state_values(claim.trial_id, TrialState.FAIL)
            claim.release()
            return None
        return claim

    def _create(self, fixed: Parameters) -> TrialClaim:
        template = create_trial(
            state=TrialState.RUNNING,
            user_attrs={FOLDER: self.folder, SEEN_AT: self.clock()},
            system_attrs={FIXED: dict(fixed)} if fixed else {},
        )
        trial_id = self.storage.create_new_trial(self.study_id, template_trial=template)
        number = self.storage.get_trial_number_from_id(trial_id)
        held = self._lock(number)
        assert held is not None, "nobody else holds the lock of a new trial"
        return self._claim(number, held)

    def _abandoned(self, trial: FrozenTrial, trials: Sequence[FrozenTrial], limit: int) -> TrialClaim | None:
        """A trial of this folder whose owner is dead; one that is too many is failed instead."""
        if trial.state != TrialState.RUNNING or trial.user_attrs.get(FOLDER) != self.folder:
            return None
        if (held := self._lock(trial.number)) is None:
            return None
        if self._is_surplus(trial.number, trials, limit):
            self._fail(trial)
            os.close(held)
            return None
        return self._claim(trial.number, held)

    def _claim(self, number: int, held: int) -> TrialClaim:
        claim = TrialClaim(number, self._id(number), held, self.storage, self.clock)
        claim.seen()
        return claim

    def _is_gone(self, trial: FrozenTrial) -> bool:
        is_other = trial.state == TrialState.RUNNING and trial.user_attrs.get(FOLDER) != self.folder
        return is_other and not self.clock() - trial.user_attrs.get(SEEN_AT, 0.0) < SECONDS_UNSEEN

    def _fail(self, trial: FrozenTrial) -> bool:
        """Fail the trial; return whether it was this process that did."""
        try:
            return self.storage.set_trial_state_values(self._id(trial.number), TrialState.FAIL)
        except UpdateFinishedTrialError:
            return False

    def _is_surplus(self, number: int, trials: Sequence[FrozenTrial], limit: int) -> bool:
        return sum(counts(trial) for trial in trials if trial.number < number) >= limit

    def _id(self, number: int) -> int:
        return self.storage.get_trial_id_from_study_id_trial_number(self.study_id, number)

    def _trials(self) -> list[FrozenTrial]:
        return self.storage.get_all_trials(self.study_id)

    def _lock(self, number: int) -> int | None:
        locks = self.directory / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        try:
            return atomic.take_lock(locks / str(number), for_what=f"trial {number}")
        except StoreError:
            return None


def counts(trial: FrozenTrial) -> bool:
    """Whether it is one of those that were asked for: done, pruned, or running."""
    return bool(trial.state != TrialState.FAIL)


@contextmanager
def folder_lock(directory: Path) -> Iterator[None]:
    """Wait for the other processes of one folder."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Pruned(Exception):
    """The run is so bad that the rest of it is not worth its time."""


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
    except Pruned:
        return TrialOutcome(score=math.nan, is_pruned=True)
    except Diverged as error:
        return TrialOutcome(score=worst, note=str(error))
    except torch.OutOfMemoryError:
        return TrialOutcome(score=worst, note="does not fit into the memory of the device")
    except BAD_SETTINGS as error:
        if is_resumed or has_begun(directory):  # the settings were good enough to begin: something else is wrong
            raise
        return TrialOutcome(score=worst, note=str(error))
    return TrialOutcome(score=float(getattr(run.evaluations[-1], score)))


def has_begun(directory: Path) -> bool:
    """Whether a run began in this folder, so that it can be resumed."""
    return RunFiles(directory).config.exists()


class TrialReporter(Callback):
    """Tells the study that a run began, that it is alive, and its evaluations; stops it where it is pruned."""

    def __init__(self, trial: Trial, claim: TrialClaim, directory: Path, *, score: str) -> None:
        self._trial, self._claim, self._score = trial, claim, score
        self._metrics = RunFiles(directory).metrics
        self._reported = set(claim.storage.get_trial(claim.trial_id).intermediate_values)
        self._steps = math.inf

    def started(self, start: Start) -> None:
        """Write down that the run begins, before it looks at a record."""
        self._steps = start.steps
        self._claim.seen()
        with suppress(UpdateFinishedTrialError):  # failed by another process; the result is dropped at the end
            self._trial.set_user_attr(BEGUN, True)

    def stepped(self, progress: Progress) -> None:
        """Write down that the run is alive."""
        self._claim.seen()

    def evaluated(self, evaluation: Evaluation) -> None:
        """Report the score under the number of the evaluation, which means the same in runs of any length."""
        self._claim.seen()
        value, number = getattr(evaluation, self._score), len(strict_json.read_lines(self._metrics))
        if number not in self._reported and math.isfinite(value):  # a resumed run evaluates some steps again
            try:
                self._trial.report(value, number)
            except UpdateFinishedTrialError:  # another process thought that this one had died, and started it again
                raise Pruned from None
        if evaluation.step < self._steps and self._trial.should_prune():
            raise Pruned


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """The trials of a search in a folder. ``options`` go to every call of ``fit``: the device and the like."""

    search: Search
    terms: SearchTerms
    directory: Path
    name: str
    url: str | None = None
    options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        pruner_by_name(self.search.pruner)
        sampler_for(self.search.sampler, seed=0, number=0)

    def run(self, callbacks: Sequence[SearchCallback] = ()) -> list[TrialRow]:
        """Run the trials that are left. A new study is refused where one of its settings is impossible."""
        if not self._mark.exists():
            check_space(self.search, plan=self.terms.plan)
            check_records(self.search, data_dir=(self.options or {}).get("data_dir"))
        claims = self.claims()
        for callback in callbacks:
            callback.began(self.rows(), trials=self.search.trials, score=self.search.score)
        try:
            while (claim := self._next(claims)) is not None:
                self._work_on(claim, callbacks)
        finally:
            for callback in callbacks:
                callback.closed(self.rows())
        return self.rows()

    def rows(self) -> list[TrialRow]:
        """The trials so far, without failed ones: others took their places."""
        with storage_errors(self.directory):
            return [self._row(trial) for trial in self.study.get_trials(deepcopy=False) if counts(trial)]

    def trial_directory(self, number: int) -> Path:
        """The run folder of a trial."""
        return self.directory / "trials" / str(number)

    @cached_property
    def storage(self) -> optuna.storages.RDBStorage:
        """The database itself."""
        return open_storage(url_for(self.directory, self.url))

    @cached_property
    def study(self) -> optuna.Study:
        """The study in its database, created if there is none; one of another search is refused."""
        with folder_lock(self.directory), storage_errors(self.directory):
            study = optuna.create_study(
                storage=self.storage,
                study_name=self.name,
                direction="maximize" if self.search.score == ACCURACY else "minimize",
                pruner=pruner_by_name(self.search.pruner),
                load_if_exists=True,
            )
            search = strict_json.loads(strict_json.dumps({**self.search.to_json(), "terms": self.terms.words}))
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

    def claims(self) -> TrialClaims:
        """The trials of this folder."""
        _ = self.study  # created, or refused
        with folder_lock(self.directory):
            if not self._mark.exists():
                strict_json.write(self._mark, {"folder": f"{RunKey.fresh_attempt():x}", "study": self.name})
        mark = strict_json.read(self._mark, strict_json.check_table)
        if mark.get("study") != self.name:
            raise StoreError(f"{self.directory} belongs to the study {mark.get('study')!r}: name another folder")
        return TrialClaims(
            storage=self.storage,
            study_id=self.storage.get_study_id_from_name(self.name),
            directory=self.directory,
            folder=validate.text(folder=mark.get("folder")),
            combinations=self.search.space.combinations() if self.search.sampler == GRID else None,
        )

    def _next(self, claims: TrialClaims) -> TrialClaim | None:
        with storage_errors(self.directory):
            return claims.next(limit=self.search.trials)

    def _work_on(self, claim: TrialClaim, callbacks: Sequence[SearchCallback]) -> None:
        try:
            with storage_errors(self.directory):
                # Optuna keeps a copy of its database, in which a new trial is missing.
                self.study.get_trials(deepcopy=False)
                seed = self.study.user_attrs[SEED]
                self.study.sampler = sampler_for(self.search.sampler, seed=seed, number=claim.number)
                trial = Trial(self.study, claim.trial_id)
                parameters = self.search.space.chosen(lambda dimension: _suggest(trial, dimension))
            for callback in callbacks:
                callback.trying(claim.number, parameters)
            self._tell(claim, self._run_trial(claim, trial, parameters, callbacks))
        finally:
            claim.release()
        for callback in callbacks:
            callback.tried(self._row(self.study.trials[claim.number]), self.rows())

    def _run_trial(
        self, claim: TrialClaim, trial: Trial, parameters: Parameters, callbacks: Sequence[SearchCallback]
    ) -> TrialOutcome:
        directory, score = self.trial_directory(claim.number), self.search.score
        if self.terms.settings_chosen_on == PRIVATE and trial.user_attrs.get(BEGUN) and not has_begun(directory):
            raise StoreError(
                f"cannot resume trial {trial.number}: it had begun, and its folder {directory} is gone; "
                "starting again would use the records a second time, which is not paid for"
            )
        return run_trial(
            self.search.trial(parameters, plan=self.terms.plan),
            directory,
            score=score,
            callbacks=(TrialReporter(trial, claim, directory, score=score), *callbacks),
            **{"seed": self.search.seed, **(self.options or {})},
        )

    def _tell(self, claim: TrialClaim, outcome: TrialOutcome) -> None:
        """Write the outcome down, unless another process failed the trial meanwhile and started it again."""
        if self.study.trials[claim.number].state != TrialState.RUNNING:
            return
        if outcome.note:
            claim.storage.set_trial_user_attr(claim.trial_id, NOTE, outcome.note)
        if outcome.is_pruned:
            self.study.tell(claim.number, state=TrialState.PRUNED)
        else:
            self.study.tell(claim.number, outcome.score)

    def _row(self, trial: FrozenTrial) -> TrialRow:
        words = {TrialState.RUNNING: RUNNING, TrialState.PRUNED: PRUNED, TrialState.FAIL: "given up"}
        note = str(trial.user_attrs.get(NOTE, ""))
        # On private records the duration follows how many were drawn, which no noise hides.
        is_timed = trial.duration is not None and self.terms.settings_chosen_on != PRIVATE
        return TrialRow(
            number=trial.number,
            state=words.get(trial.state, FAILED if note else DONE),
            score=trial.value if trial.state == TrialState.COMPLETE and not note else None,
            parameters=dict(trial.params),
            note=note,
            seconds=trial.duration.total_seconds() if is_timed else None,  # type: ignore[union-attr]
        )


def _suggest(trial: Trial, dimension: Dimension) -> Value:
    name = dimension.name
    if isinstance(dimension, Choices):
        kept: Value = trial.suggest_categorical(name, dimension.tried)  # type: ignore[assignment]  # none of them is None
        return kept
    if dimension.is_whole:
        return trial.suggest_int(name, int(dimension.low), int(dimension.high), step=int(dimension.step or 1))
    return trial.suggest_float(name, dimension.low, dimension.high, step=dimension.step, log=dimension.log)


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The best trial, if any was scored, its configuration, and the page."""

    best: TrialRow | None
    winner: Path | None
    page: Path


def finish(study: Study, rows: Sequence[TrialRow]) -> SearchResult:
    """Write the winner as a configuration, and the page, over those that there are."""
    search, terms = study.search, study.terms
    best, winner = best_of(rows, score=search.score), None
    if best is not None:
        winner = study.directory / WINNER
        chosen = winning_configuration(search, dict(best.parameters), settings_chosen_on=terms.settings_chosen_on)
        about = toml_text.comment(_about(study, best, len(rows)))
        atomic.write(winner, f"{about}\n{chosen.to_toml()}", overwrite=True)
    page = search_page.render(
        rows,
        title=f"Search {study.name}",
        score=search.score,
        trials=search.trials,
        terms=terms.words,
        winner="" if winner is None else atomic.read(winner),
        names=[dimension.name for dimension in search.space.dimensions],
    )
    atomic.write(study.directory / PAGE, page, overwrite=True)
    return SearchResult(best=best, winner=winner, page=study.directory / PAGE)


def winning_configuration(search: Search, parameters: Mapping[str, Value], *, settings_chosen_on: str) -> RunConfig:
    """The run that the settings are for, which states on what kind of records they were chosen."""
    reference = search.reference(parameters)
    privacy: dict[str, Any] = {**reference.privacy}
    stated = {"settings_chosen_on": settings_chosen_on}
    privacy |= {"stated": {**as_json(privacy["stated"]), **stated}} if "stated" in privacy else stated
    return reference.with_tables(privacy=privacy)


def _about(study: Study, best: TrialRow, num_trials: int) -> str:
    search, how = study.search, "at its full batch"
    if "simulated_batch_size" in search.configuration.privacy:
        how = "simulated by smaller batches; this is the run that they stand for"
    reached = f"{search.score} {score_text(best.score, score=search.score)}"
    about = (
        f"Trial {best.number} of {num_trials}: {reached} while searching, {how}.\nThe search was {study.terms.words}."
    )
    if "epsilon" not in search.configuration.privacy and best.parameters.get("batch_factor", 1) != 1:
        # With other batches at the same noise the run costs nearly the same ε.
        _, plan = method_and_plan(search.reference(dict(best.parameters)))
        cost, before = (at_most(each.bound().epsilon) for each in (plan, search.plan))
        about += f"\nOn private records this run would cost ε = {cost} at δ = {exactly(plan.delta)}; "
        about += f"with the batch as it was configured, {before}."
    if study.terms.settings_chosen_on == PRIVATE:
        about += f"\nIts model is in trials/{best.number}. Training this file is another run, which is paid for again."
    return about
