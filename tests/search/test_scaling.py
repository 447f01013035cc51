"""Simulated runs with several batches, and the prediction from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.certificates.run_reading import read_run
from lehr.config import RunConfig
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.planning import simulation
from lehr.planning.simulation import Prediction
from lehr.run.shape import Callback, Progress, Start
from lehr.search.scaling import Scaling
from tests.written_runs import write_run

CONFIGURATION = RunConfig.of(
    data={"name": "digits", "declared": "public"},
    privacy={"noise_multiplier": 2.0, "expected_batch_size": 64, "steps": 3, "delta": 1e-4, "simulated_batch_size": 9},
    training={"evaluate_every": 3},
)
HOW: dict[str, Any] = {"quiet": True, "compiled": False, "device": "cpu", "checkpoint_seconds": 0.0}


def scaling(directory: Path, *batches: float, num_seeds: int = 1, **tables: Any) -> Scaling:
    asked = CONFIGURATION.with_values(**tables)
    return Scaling.of(asked, batches=batches or (8, 16, 32), num_seeds=num_seeds, directory=directory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scaling") / "cheap"


@pytest.fixture(scope="module")
def predicted(folder: Path) -> Prediction:
    return scaling(folder).predict(**HOW)


def test_the_runs_simulate_the_plan_and_the_prediction_is_written(folder: Path, predicted: Prediction) -> None:
    assert (predicted.reference.expected_batch_size, predicted.reference.noise_multiplier) == (64, 2.0)
    assert [run.expected_batch_size for run in predicted.runs] == [8, 16, 32]
    for run in predicted.runs:
        record = read_run(folder / f"batch-{run.expected_batch_size:g}-seed-0")
        assert record.plan is not None
        assert record.plan.simulates == predicted.reference
        assert record.last is not None
        assert record.last.accuracy == run.accuracy
    assert strict_json.read(folder / "prediction.json", simulation.prediction_from_json) == predicted
    assert "protect nobody" in (folder / "prediction.html").read_text()
    assert predicted.setting["model"]["network"] == "small_cnn"


def test_finished_runs_are_not_repeated_and_more_can_be_asked_for(folder: Path, predicted: Prediction) -> None:
    def weights() -> dict[str, int]:
        return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/model.safetensors")}

    before = weights()
    asked = scaling(folder, 8, 16, 24)
    assert len(asked.predict(**HOW).runs) == 3
    assert {name: weights()[name] for name in before} == before
    assert weights().keys() - before.keys() == {"batch-24-seed-0"}
    assert asked.left_out == ["batch-32-seed-0"]


@pytest.mark.parametrize("tables", [{"method": {"learning_rate": 0.7}}, {"privacy": {"steps": 4}}])
def test_runs_of_another_configuration_are_not_mixed_in(
    folder: Path, predicted: Prediction, tables: dict[str, Any]
) -> None:
    with pytest.raises(InvalidValue, match="folder"):
        scaling(folder, **tables).predict(**HOW)


class _Killed(Callback):
    """Ends the process, as far as the run can tell, at a step; and notes where runs begin."""

    def __init__(self, *, at: int | None) -> None:
        self.first_steps: list[int] = []
        self._at = at

    def started(self, start: Start) -> None:
        self.first_steps.append(start.first_step)

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._at and len(self.first_steps) == 2:
            raise KeyboardInterrupt


def test_a_killed_run_is_resumed_and_one_that_never_began_begins(tmp_path: Path) -> None:
    asked = scaling(tmp_path / "cheap")
    (tmp_path / "cheap").mkdir()
    (tmp_path / "cheap" / ".0123.part").touch()
    with pytest.raises(KeyboardInterrupt):
        asked.predict(**HOW, callbacks=[_Killed(at=2)])
    (tmp_path / "cheap" / ".batch-32-seed-0.part" / "private").mkdir(parents=True)  # killed while it was made
    again = _Killed(at=None)
    assert len(asked.predict(**HOW, callbacks=[again]).runs) == 3
    assert again.first_steps == [1, 0]  # the step that was cut short is taken again


def test_other_files_other_plans_and_other_processes_are_refused(
    folder: Path, predicted: Prediction, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError):
        scaling(tmp_path / "mine").predict(**HOW)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    write_run(folder / "batch-10-seed-0")
    with pytest.raises(StoreError, match="another plan"):
        scaling(folder, 8, 10, 16).predict(**HOW)
    with atomic.locked(folder / "lock", for_what="a test"), pytest.raises(StoreError, match="another process"):
        scaling(folder).predict(**HOW)


@pytest.mark.parametrize(
    "tables, name",
    [
        ({"data": {"declared": "private"}}, "declared"),
        ({"training": {"patience": 3}}, "patience"),
        ({"data": {"npz": "own.npz", "records": 100, "num_classes": 2}}, "test records"),
        ({"method": {"name": "plain-sgd"}}, "noise_multiplier"),
    ],
)
def test_what_cannot_be_predicted_is_refused_before_the_first_run(
    tmp_path: Path, tables: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidValue) as error:
        scaling(tmp_path / "cheap", **tables)
    assert error.value.name == name
    assert not (tmp_path / "cheap").exists()
