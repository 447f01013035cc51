"""Simulated runs of one configuration at several batches, kept in one folder, and what they predict.

    FOLDER/
        request.json        what is simulated, so that no other run is ever mixed in
        batch-64-seed-0/    a run: one that is done is not done again, one that was killed goes on
        prediction.json     what follows for the configuration itself
        prediction.html     the same as one page

The records must be declared public or synthetic: a simulated run protects nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from lehr import validate
from lehr.certificates.run_reading import RunRecord, State, read_run
from lehr.config import DATA_FORMS, RunConfig
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.planning.plan import DECLARED, PRIVATE, Plan
from lehr.planning.simulation import FEWEST_BATCHES, FEWEST_RUNS, Prediction, SimulatedRun, setting_of, simulate
from lehr.reports import prediction_page
from lehr.reports.progress import TrainingProgress
from lehr.run.shape import Callback, Evaluation, RunFiles
from lehr.training.fit import fit
from lehr.training.prepare import method_and_plan

FORMAT, FORMAT_VERSION = "lehr simulations", 1
_NOT_KEPT = ("npz", "folder", "streamed", "workers")  # where records are and how they are read is not written down


@dataclass(frozen=True, kw_only=True)
class RequestedRun:
    """One simulated run."""

    batch: float
    seed: int

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"batch-{self.batch:.10g}-seed-{self.seed}"

    def __str__(self) -> str:
        return f"batches of {self.batch:,.10g}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Simulated runs of a configuration: ``runs`` in ``directory``, of which the ``reference`` plan is predicted."""

    configuration: RunConfig
    reference: Plan
    runs: tuple[RequestedRun, ...]
    directory: Path

    @classmethod
    def of(cls, configuration: RunConfig, *, batches: Sequence[float], num_seeds: int, directory: Path) -> Self:
        """What is asked for, refused here rather than after the first hours. Nothing is written, no record is read."""
        _check_predictable(configuration)
        _, reference = method_and_plan(configuration.at_full_batch())
        for batch in batches:
            simulate(reference, expected_batch_size=batch)
        runs = tuple(
            RequestedRun(batch=float(batch), seed=seed)
            for batch in sorted(batches)
            for seed in range(validate.count(num_seeds=num_seeds))
        )
        if len(set(batches)) != len(batches) or len(batches) < FEWEST_BATCHES or len(runs) < FEWEST_RUNS:
            allowed = f"{FEWEST_BATCHES} or more different ones, with {FEWEST_RUNS} or more runs in all"
            given = f"{', '.join(f'{batch:g}' for batch in batches)}; {num_seeds} seeds"
            raise InvalidValue("batches", allowed=allowed, given=given)
        return cls(configuration=configuration, reference=reference, runs=runs, directory=directory)

    @property
    def left_out(self) -> list[str]:
        """Runs in the folder that were made before, and are not asked for now."""
        asked = {run.folder for run in self.runs}
        return sorted({path.parent.name for path in self.directory.glob("batch-*/config.json")} - asked)

    def predict(
        self, *, confidence: float = 0.95, quiet: bool = False, callbacks: Sequence[Callback] = (), **how: Any
    ) -> Prediction:
        """Make every run that is not there yet, and write down what follows. ``how`` is handed on to training."""
        self._check_folder()
        shown = TrainingProgress(quiet=quiet)
        how |= {"callbacks": (shown, *callbacks), "silent": True}
        # What one process has not begun yet, another would take for left behind.
        with atomic.locked(self.directory / "lock", for_what=f"the simulations in {self.directory}"):
            records = []
            for number, asked in enumerate(self.runs, start=1):
                shown.label = f"run {number} of {len(self.runs)}, {asked}"
                records.append(self._run(asked, shown, quiet=quiet, **how))
        prediction = self._prediction(records, confidence=confidence)
        strict_json.write(self.directory / "prediction.json", prediction.to_json(), overwrite=True)
        atomic.write(self.directory / "prediction.html", prediction_page.render(prediction), overwrite=True)
        return prediction

    def _run(self, asked: RequestedRun, shown: TrainingProgress, *, quiet: bool, **how: Any) -> RunRecord:
        where = self.directory / asked.folder
        plan = simulate(self.reference, expected_batch_size=asked.batch)
        is_begun = RunFiles(where).config.exists()
        if is_begun and (record := read_run(where)).state is State.COMPLETED:
            accuracy = _last(record, plan).accuracy
            if not quiet:
                shown.say(f"{shown.label}: done before, accuracy {100 * accuracy:.1f} %")
            return record
        fit(
            config=self.configuration.with_plan(plan),
            seed=asked.seed,
            directory=where,
            resume=is_begun,
            name=f"simulation by {asked}",
            **how,
        )
        return read_run(where)

    def _prediction(self, records: Sequence[RunRecord], *, confidence: float) -> Prediction:
        rows = [
            _last(record, simulate(self.reference, expected_batch_size=asked.batch))
            for asked, record in zip(self.runs, records, strict=True)
        ]
        prediction = Prediction(
            reference=self.reference,
            runs=tuple(
                SimulatedRun(expected_batch_size=asked.batch, accuracy=row.accuracy, seed=asked.seed)
                for asked, row in zip(self.runs, rows, strict=True)
            ),
            confidence=confidence,
            evaluated_on=rows[0].on,
            setting=setting_of(records[0].config),
        )
        for record, row in zip(records, rows, strict=True):
            others = prediction.other_settings(record.config)
            if others or row.on != prediction.evaluated_on:
                raise StoreError(f"{record.directory} was made otherwise: {'; '.join(others) or row.on}; remove it")
        return prediction

    def _check_folder(self) -> None:
        """Refuse a folder of another configuration: its runs would be taken for one experiment."""
        path = self.directory / "request.json"
        tables = self.configuration.with_plan(None).tables()
        tables.pop("run")
        tables["data"] = {key: value for key, value in tables["data"].items() if not key.endswith(_NOT_KEPT)}
        words = {"format": FORMAT, "format_version": FORMAT_VERSION, "reference": self.reference.to_json(), **tables}
        request = strict_json.check_table(strict_json.loads(strict_json.dumps(words)))  # as it is read from a file
        if not path.exists():
            names = _names(self.directory) if self.directory.is_dir() else self.directory.exists()
            if names:
                raise StoreError(f"{self.directory} is there already, and has no simulations: name another folder")
            self.directory.mkdir(parents=True, exist_ok=True)
            strict_json.write(path, request)
            return
        before = strict_json.read(path, lambda shape: strict_json.fields("simulations", shape, tuple(request)))
        if differing := [name for name, value in request.items() if before[name] != value]:
            allowed = f"one for simulations of this very configuration ({path}), or a new one"
            raise InvalidValue("folder", allowed=allowed, given=f"one with another {', '.join(differing)}")


def _check_predictable(configuration: RunConfig) -> None:
    data, training = configuration.data, configuration.training
    if validate.one_of(DECLARED, declared=data.get("declared", PRIVATE)) == PRIVATE:
        allowed = "public or synthetic under [data]: simulated runs have next to no noise, and would protect nobody"
        raise InvalidValue("declared", allowed=allowed, given=data.get("declared", PRIVATE))
    if training.get("patience") is not None:
        allowed = "left out: simulated runs take every step of the plan, as the one that is predicted does"
        raise InvalidValue("patience", allowed=allowed, given=training["patience"])
    is_own = any(form in data for form in DATA_FORMS)
    is_scored = any(f"test_{form}" in data for form in DATA_FORMS) or training.get("held_out_fraction")
    if is_own and not is_scored:
        raise InvalidValue("test records", allowed="given for data of your own: what else is predicted?", given=None)


def _names(directory: Path) -> set[str]:
    """What is in a folder, without files that were half written when a process was killed."""
    return {entry.name for entry in directory.iterdir() if not (entry.name[0] == "." and entry.suffix == ".part")}


def _last(record: RunRecord, plan: Plan) -> Evaluation:
    """The last evaluation of a run that is what its folder is named after."""
    if record.plan != plan:
        raise StoreError(f"{record.directory} has a run of another plan: remove it, or name another folder")
    if record.state is not State.COMPLETED or record.last is None:
        raise StoreError(f"the run in {record.directory} tells no accuracy: {record.state.value}")
    return record.last
