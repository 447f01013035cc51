"""A study: the trials of a search in a folder and a database, which goes on after any crash, on one machine or many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from lehr import validate
from lehr.errors import InvalidValue, StoreError
from lehr.files import json_file, strict_json
from lehr.reports.search_rows import DONE, FAILED, PRUNED, RUNNING, Row, SearchCallback
from lehr.rng import RunKey
from lehr.run_folder import differences
from lehr.run_shape import PRIVATE, Callback, Start
from lehr.search import storage as storages
from lehr.search.asked import ACCURACY, Search
from lehr.search.checking import refuse_unfit_records, refuse_what_cannot_be_tried
from lehr.search.claiming import Claim, Claims, counts, turn
from lehr.search.dimension import Choices, Dimension, Value
from lehr.search.names import GRID, NO_PRUNER
from lehr.search.objective import Outcome, Pruned, Watched, began, tried
from lehr.search.samplers import pruner_named, sampler_for
from lehr.search.space import Parameters
from lehr.search.terms import Terms

ASKED, SEED, NOTE, BEGUN = "asked", "seed", "note", "begun"


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """The trials of a search in a folder. ``how`` is handed on to every training: the device and the like."""

    search: Search
    terms: Terms
    directory: Path
    name: str
    url: str | None = None
    how: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.terms.may_prune and self.search.pruner != NO_PRUNER:
            allowed = "none on these terms: all of a trial is paid for"
            raise InvalidValue("pruner", allowed=allowed, given=self.search.pruner)
        if self.terms.num_trials not in (None, self.search.trials):
            allowed = f"the {self.terms.num_trials} that were paid for"
            raise InvalidValue("trials", allowed=allowed, given=self.search.trials)
        pruner_named(self.search.pruner)
        sampler_for(self.search.sampler, seed=0, number=0)

    def run(self, told: Sequence[SearchCallback] = ()) -> list[Row]:
        """Try what there is left to try. A new study is refused where it names what cannot be had."""
        if not self._mark.exists():
            refuse_what_cannot_be_tried(self.search, plan=self.terms.plan)
            refuse_unfit_records(self.search, data_dir=(self.how or {}).get("data_dir"))
        claims = self._claims()
        for callback in told:
            callback.began(self.rows(), trials=self.search.trials, score=self.search.score)
        try:
            while (claim := self._next(claims)) is not None:
                self._work_on(claim, told)
        finally:
            for callback in told:
                callback.closed(self.rows())
        return self.rows()

    def rows(self) -> list[Row]:
        """The trials so far, those left out that failed: others took their places."""
        with storages.reading(self.directory):
            return [self._row(trial) for trial in self.study.get_trials(deepcopy=False) if counts(trial)]

    def trial_directory(self, number: int) -> Path:
        """Where the run of a trial is."""
        return self.directory / "trials" / str(number)

    @cached_property
    def storage(self) -> optuna.storages.RDBStorage:
        """The database itself."""
        return storages.opened(storages.url_for(self.directory, self.url))

    @cached_property
    def study(self) -> optuna.Study:
        """The study in its database, made where there is none yet; one of another search is refused."""
        with turn(self.directory), storages.reading(self.directory):
            study = optuna.create_study(
                storage=self.storage,
                study_name=self.name,
                direction="maximize" if self.search.score == ACCURACY else "minimize",
                pruner=pruner_named(self.search.pruner),
                load_if_exists=True,
            )
            self._sign(study)
        return study

    @property
    def _mark(self) -> Path:
        return self.directory / "search.json"

    def _sign(self, study: optuna.Study) -> None:
        """Write down what is searched for, or refuse to go on with something else."""
        asked = strict_json.loads(strict_json.dumps({**self.search.to_json(), "terms": self.terms.words}))
        before, _ = study.user_attrs.get(ASKED), study.get_trials()
        if before is None:
            seed = RunKey.fresh_attempt() if self.search.seed is None else self.search.seed
            study.set_user_attr(SEED, seed)
            study.set_user_attr(ASKED, asked)
        elif differing := differences(strict_json.a_table(before), strict_json.a_table(asked)):
            allowed = f"gone on with as it began, or another folder than {self.directory}"
            raise InvalidValue("study", allowed=allowed, given="; ".join(differing))

    def _claims(self) -> Claims:
        _ = self.study  # signed, or refused
        return Claims(
            storage=self.storage,
            study_id=self.storage.get_study_id_from_name(self.name),
            directory=self.directory,
            folder=self._folder(),
            combinations=self.search.space.combinations() if self.search.sampler == GRID else None,
        )

    def _folder(self) -> str:
        """The mark of this folder, by which it knows its own trials; a folder serves one study."""
        with turn(self.directory):
            if not self._mark.exists():
                json_file.write(self._mark, {"folder": f"{RunKey.fresh_attempt():x}", "study": self.name})
        kept = json_file.read(self._mark, strict_json.a_table)
        if kept.get("study") != self.name:
            raise StoreError(f"{self.directory} belongs to the study {kept.get('study')!r}: name another folder")
        return validate.text(folder=kept.get("folder"))

    def _next(self, claims: Claims) -> Claim | None:
        with storages.reading(self.directory):
            return claims.next(limit=self.search.trials)

    def _work_on(self, claim: Claim, told: Sequence[SearchCallback]) -> None:
        try:
            with storages.reading(self.directory):
                trial, parameters = self._given(claim)
            for callback in told:
                callback.trying(claim.number, parameters)
            self._tell(claim, self._tried(claim, trial, parameters, told))
        finally:
            claim.let_go()
        for callback in told:
            callback.tried(self._row(self.study.trials[claim.number]), self.rows())

    def _given(self, claim: Claim) -> tuple[Trial, Parameters]:
        """The settings of the trial: those that it has, and of the others what the sampler says."""
        study = self.study
        study.get_trials(deepcopy=False)  # Optuna keeps a copy of its database, in which a trial of ours is missing
        study.sampler = sampler_for(self.search.sampler, seed=study.user_attrs[SEED], number=claim.number)
        trial = Trial(study, claim.trial_id)
        return trial, self.search.space.chosen(lambda dimension: _suggested(trial, dimension))

    def _tried(self, claim: Claim, trial: Trial, parameters: Parameters, told: Sequence[SearchCallback]) -> Outcome:
        directory = self.trial_directory(claim.number)
        self._refuse_to_begin_again(trial, directory)
        reported = self.study.trials[claim.number].intermediate_values

        def report(value: float, place: int) -> None:
            if place in reported or not math.isfinite(value):  # a run that went on evaluates some steps again
                return
            try:
                trial.report(value, place)
            except UpdateFinishedTrialError:  # others thought that this process had died, and began it anew
                raise Pruned from None

        watched = Watched(
            directory, score=self.search.score, report=report, is_hopeless=trial.should_prune, alive=claim.seen
        )
        configuration = self.search.trial(parameters, plan=self.terms.plan)

        return tried(
            configuration,
            directory,
            score=self.search.score,
            callbacks=(_Begins(trial), watched, *told),
            how={"seed": self.search.seed, **(self.how or {})},
        )

    def _refuse_to_begin_again(self, trial: Trial, directory: Path) -> None:
        """A trial that is paid for is paid for once: it goes on from its folder, or not at all."""
        if self.terms.settings_chosen_on == PRIVATE and trial.user_attrs.get(BEGUN) and not began(directory):
            raise StoreError(
                f"cannot go on with trial {trial.number}: it had begun, and its folder {directory} is gone; "
                "begun anew it would look at the records a second time, which is not paid for"
            )

    def _tell(self, claim: Claim, outcome: Outcome) -> None:
        """Write the outcome down, unless others gave the trial up meanwhile and began it anew."""
        if self.study.trials[claim.number].state != TrialState.RUNNING:
            return
        if outcome.note:
            claim.storage.set_trial_user_attr(claim.trial_id, NOTE, outcome.note)
        if outcome.is_pruned:
            self.study.tell(claim.number, state=TrialState.PRUNED)
        else:
            self.study.tell(claim.number, outcome.score)

    def _seconds(self, trial: FrozenTrial) -> float | None:
        """How long it took. Not on private records: that follows how many were drawn, which no noise hides."""
        if trial.duration is None or self.terms.settings_chosen_on == PRIVATE:
            return None
        return trial.duration.total_seconds()

    def _row(self, trial: FrozenTrial) -> Row:
        words = {TrialState.RUNNING: RUNNING, TrialState.PRUNED: PRUNED, TrialState.FAIL: "given up"}
        note = str(trial.user_attrs.get(NOTE, ""))
        return Row(
            number=trial.number,
            state=words.get(trial.state, FAILED if note else DONE),
            score=trial.value if trial.state == TrialState.COMPLETE and not note else None,
            parameters=dict(trial.params),
            note=note,
            seconds=self._seconds(trial),
        )


class _Begins(Callback):
    """Notes in the study that the run of a trial begins, before it looks at a record."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def started(self, start: Start) -> None:
        """Note it."""
        with suppress(UpdateFinishedTrialError):  # given up by others; what was found is dropped at the end
            self._trial.set_user_attr(BEGUN, True)


def _suggested(trial: Trial, dimension: Dimension) -> Value:
    name = dimension.name
    if isinstance(dimension, Choices):
        kept: Value = trial.suggest_categorical(name, dimension.texts)  # type: ignore[assignment]  # none of them is None
        return kept
    if dimension.is_whole:
        return trial.suggest_int(name, int(dimension.low), int(dimension.high), step=int(dimension.step or 1))
    return trial.suggest_float(name, dimension.low, dimension.high, step=dimension.step, log=dimension.log)
