"""Simulated runs of one configuration with several smaller batches, and what they predict.

    FOLDER/
        request.json        what is simulated, so that no other run is ever mixed in
        batch-64-seed-0/    a run: one that is done is not done again, one that was killed is resumed
        prediction.json     what follows for the configuration itself
        prediction.html     the same as one page

The records must be declared public or synthetic: a simulated run protects nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
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
from lehr.run.folder import differences
from lehr.run.shape import Callback, Evaluation, RunFiles
from lehr.training.fit import fit
from lehr.training.prepare import method_and_plan

FORMAT, FORMAT_VERSION = "lehr simulations", 1
_NOT_KEPT = ("npz", "folder", "streamed", "workers")  # where records are and how they are read is not written down


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Simulated runs of a configuration: ``runs`` are pairs of batch and seed, ``reference`` is the predicted plan."""

    configuration: RunConfig
    reference: Plan
    runs: tuple[tuple[float, int], ...]
    directory: Path

    @classmethod
    def of(cls, configuration: RunConfig, *, batches: Sequence[float], num_seeds: int, directory: Path) -> Self:
        """What is asked for, refused here rather than after the first hours. Nothing is written, no record is read."""
        _check_predictable(configuration)
        _, reference = method_and_plan(configuration.at_full_batch())
        for batch in batches:
            simulate(reference, expected_batch_size=batch)
        runs = tuple(product(map(float, sorted(batches)), range(validate.count(num_seeds=num_seeds))))
        if len(set(batches)) != len(batches) or len(batches) < FEWEST_BATCHES or len(runs) < FEWEST_RUNS:
            allowed = f"{FEWEST_BATCHES} or more different ones, with {FEWEST_RUNS} or more runs in all"
            given = f"{', '.join(f'{batch:g}' for batch in batches)}; {num_seeds} seeds"
            raise InvalidValue("batches", allowed=allowed, given=given)
        return cls(configuration=configuration, reference=reference, runs=runs, directory=directory)

    @property
    def left_out(self) -> list[str]:
        """Runs in the folder that were made before, and are not asked for now."""
        asked = {self._folder(*run).name for run in self.runs}
        return sorted({path.parent.name for path in self.directory.glob("batch-*/config.json")} - asked)

    def predict(
        self, *, confidence: float = 0.95, quiet: bool = False, callbacks: Sequence[Callback] = (), **options: Any
    ) -> Prediction:
        """Make every run that is not there yet, and write down what follows. ``options`` go to ``fit``."""
        self._check_folder()
        progress = TrainingProgress(quiet=quiet)
        options |= {"callbacks": (progress, *callbacks), "silent": True}
        # What one process has not begun yet, another would take for left behind.
        with atomic.locked(self.directory / "lock", for_what=f"the simulations in {self.directory}"):
            records = []
            for number, (batch, seed) in enumerate(self.runs, start=1):
                name = f"batches of {batch:,.10g}, seed {seed}"
                progress.label = f"run {number} of {len(self.runs)}, {name}"
                records.append(self._run(batch, seed, progress, name=f"simulation by {name}", **options))
        rows = [_last_evaluation(record) for record in records]
        prediction = Prediction(
            reference=self.reference,
            runs=tuple(
                SimulatedRun(expected_batch_size=batch, accuracy=_accuracy(row), seed=seed)
                for (batch, seed), row in zip(self.runs, rows, strict=True)
            ),
            confidence=confidence,
            evaluated_on=rows[0].on,
            setting=setting_of(records[0].config),
        )
        for record, row in zip(records, rows, strict=True):
            others = prediction.other_settings(record.config)
            if others or row.on != prediction.evaluated_on:
                raise StoreError(f"{record.directory} was made otherwise: {'; '.join(others) or row.on}; remove it")
        strict_json.write(self.directory / "prediction.json", prediction.to_json(), overwrite=True)
        atomic.write(self.directory / "prediction.html", prediction_page.render(prediction), overwrite=True)
        return prediction

    def _folder(self, batch: float, seed: int) -> Path:
        return self.directory / f"batch-{batch:.10g}-seed-{seed}"

    def _run(self, batch: float, seed: int, progress: TrainingProgress, **options: Any) -> RunRecord:
        folder = self._folder(batch, seed)
        plan = simulate(self.reference, expected_batch_size=batch)
        has_begun = RunFiles(folder).config.exists()
        if has_begun and (record := read_run(folder)).plan != plan:
            raise StoreError(f"{folder} has a run of another plan: remove it, or name another folder")
        if has_begun and record.state is State.COMPLETED:
            if not progress.quiet:
                progress.say(f"{progress.label}: done before, accuracy {_accuracy(_last_evaluation(record)):.1%}")
            return record
        fit(config=self.configuration.with_plan(plan), seed=seed, directory=folder, resume=has_begun, **options)
        return read_run(folder)

    def _check_folder(self) -> None:
        """Refuse a folder of another configuration: its runs would be taken for one experiment."""
        path = self.directory / "request.json"
        tables = self.configuration.with_plan(None).tables()
        tables.pop("run")
        tables["data"] = {key: value for key, value in tables["data"].items() if not key.endswith(_NOT_KEPT)}
        shape = {"format": FORMAT, "format_version": FORMAT_VERSION, "reference": self.reference.to_json(), **tables}
        request = strict_json.check_table(strict_json.loads(strict_json.dumps(shape)))  # as it is read from a file
        if path.exists():
            if differing := differences(strict_json.read(path, strict_json.check_table), request):
                allowed = f"one for simulations of this very configuration ({path}), or a new one"
                raise InvalidValue("folder", allowed=allowed, given="; ".join(differing))
            return
        # A process that was killed while it wrote may have left hidden files.
        directory = self.directory
        if directory.exists() and (
            not directory.is_dir() or any(each.suffix != ".part" for each in directory.iterdir())
        ):
            raise StoreError(f"{self.directory} is there already, and has no simulations: name another folder")
        self.directory.mkdir(parents=True, exist_ok=True)
        strict_json.write(path, request)


def _check_predictable(configuration: RunConfig) -> None:
    data, training = configuration.data, configuration.training
    declared = validate.one_of(DECLARED, declared=data.get("declared", PRIVATE))
    if declared == PRIVATE:
        allowed = "public or synthetic under [data]: simulated runs have next to no noise, and would protect nobody"
        raise InvalidValue("declared", allowed=allowed, given=declared)
    if training.get("patience") is not None:
        allowed = "left out: simulated runs take every step of the plan, as the one that is predicted does"
        raise InvalidValue("patience", allowed=allowed, given=training["patience"])
    is_scored = any(f"test_{form}" in data for form in DATA_FORMS) or training.get("held_out_fraction")
    if any(form in data for form in DATA_FORMS) and not is_scored:
        raise InvalidValue("test records", allowed="given for data of your own: what else is predicted?", given=None)


def _last_evaluation(record: RunRecord) -> Evaluation:
    if record.state is not State.COMPLETED or record.last is None:
        raise StoreError(f"the run in {record.directory} has no accuracy: {record.state.value}")
    return record.last


def _accuracy(row: Evaluation) -> float:
    if row.accuracy is None:
        raise InvalidValue("task", allowed="one with an accuracy: that is what is predicted", given="regression")
    return row.accuracy
