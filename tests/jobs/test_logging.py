"""Callbacks that a user writes or passes to ``fit``: released values reach an experiment tracker."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import lehr
from lehr.integrations.loggers import LogMetrics

STEPS = 4


def a_run(folder: Path, *callbacks: lehr.Callback) -> None:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-4, "steps": STEPS, "batch_size": 32}
    lehr.fit("small_cnn", "digits", **settings, evaluate_every=2, directory=folder, callbacks=callbacks, quiet=True)


def test_a_log_function_gets_evaluations_and_epsilon(tmp_path: Path) -> None:
    logged: defaultdict[str, list[int]] = defaultdict(list)

    def log(values: dict[str, float], step: int) -> None:
        for name in values:
            logged[name].append(step)

    a_run(tmp_path / "run", LogMetrics(log))
    assert logged["epsilon/proven"] == [1, 2, 3, 4]
    assert logged["loss/test"] == logged["accuracy/test"] == [2, 4]


def test_a_callback_of_ones_own_sees_the_whole_run(tmp_path: Path) -> None:
    seen: list[str] = []

    class Seen(lehr.Callback):
        def started(self, start: Any) -> None:
            seen.append(f"of {start.steps}")

        def stepped(self, progress: Any) -> None:
            seen.append(f"step {progress.step}")

        def ended(self, end: Any) -> None:
            seen.append(end.reason)

    a_run(tmp_path / "run", Seen())
    assert seen == ["of 4", "step 1", "step 2", "step 3", "step 4", "plan completed"]


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path) as run:
        a_run(tmp_path / "run", LogMetrics(wandb.log))
        assert run.summary["epsilon/proven"] > 0


def test_mlflow_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        a_run(tmp_path / "run", LogMetrics(mlflow.log_metrics))
    assert mlflow.get_run(run.info.run_id).data.metrics["epsilon/proven"] > 0
