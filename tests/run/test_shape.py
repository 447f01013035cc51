"""The files of a run, and the rows and words about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.errors import InvalidValue
from lehr.run.shape import Callback, End, Evaluation, Progress, RunFiles, Start

ROW = Evaluation(step=4, accepted=3, epsilon_spent=1.5, loss=0.25, accuracy=0.75, on="test", learning_rate=0.5)


def test_private_files() -> None:
    files = RunFiles(Path("run"))
    private = {"key", "attempts", "fingerprint", "split", "diagnostics", "lock", "private_audit"}
    public = {"config", "ledger", "metrics", "checkpoints", "model", "certificate", "audit", "report"}
    assert all(getattr(files, name).parent == files.private for name in private)
    assert all(getattr(files, name).parent == files.directory for name in public)
    assert vars(files).keys() == private | public | {"private", "directory"}


def test_file_names_are_unique() -> None:
    paths = vars(RunFiles(Path("run"))).values()
    assert len(set(paths)) == len(paths)


TOLD = replace(ROW, accuracy_by_class=(0.5, None, 1.0), noise_multiplier=1.5, clip_norm=0.1)


@pytest.mark.parametrize("row", [ROW, TOLD], ids=["plain", "with all that may be told"])
def test_row_round_trip(row: Evaluation) -> None:
    assert Evaluation.from_json(json.loads(json.dumps(row.to_json()))) == row


def test_row_with_missing_optional_fields() -> None:
    assert set(ROW.to_json()) == {"step", "accepted", "epsilon_spent", "loss", "accuracy", "on", "learning_rate"}


@pytest.mark.parametrize(
    "shape",
    [
        {"accuracy_by_class": [0.5, 1.5]},
        {"accuracy_by_class": [-0.5]},
        {"accuracy_by_class": ["all"]},
        {"accuracy_by_class": 0.5},
        {"noise_multiplier": 0},
        {"noise_multiplier": None},
        {"clip_norm": float("nan")},
    ],
    ids=str,
)
def test_row_with_invalid_values(shape: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        Evaluation.from_json({**TOLD.to_json(), **shape})


@pytest.mark.parametrize(
    "shape",
    [
        None,
        [],
        {},
        {**ROW.to_json(), "drawn": 3},
        {name: value for name, value in ROW.to_json().items() if name != "loss"},
        {**ROW.to_json(), "step": -1},
        {**ROW.to_json(), "step": 1.5},
        {**ROW.to_json(), "accepted": True},
    ],
    ids=str,
)
def test_row_with_other_fields(shape: object) -> None:
    with pytest.raises(InvalidValue):
        Evaluation.from_json(shape)


def test_callback_defaults() -> None:
    callback = Callback()
    callback.started(
        Start(
            run="first", directory=Path("run"), method="dpsgd", steps=5, first_step=0, expected_batch_size=8.0,
            epsilon=3.0, delta=1e-5,
        )
    )  # fmt: skip
    callback.stepped(Progress(step=1, accepted=1, epsilon_spent=0.5))
    callback.evaluated(replace(ROW, step=5))
    callback.ended(End(step=5, accepted=5, epsilon_spent=3.0, reason="plan completed"))
