from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import MissingExtra
from lehr.reports.tensorboard import TensorBoard
from lehr.run.shape import End, Progress, Start
from tests.written_runs import evaluations


def start(directory: Path) -> Start:
    return Start(
        run="first",
        directory=directory,
        method="dpsgd",
        steps=40,
        first_step=0,
        expected_batch_size=16.0,
        epsilon=3.0,
        delta=1e-5,
    )


def train(board: TensorBoard, directory: Path, *, epsilon: float = 0.01) -> None:
    board.started(start(directory))
    for step in range(1, 41):
        board.stepped(Progress(step=step, accepted=step, epsilon_spent=epsilon * step))
    for row in evaluations():
        board.evaluated(row)
    board.ended(End(step=40, accepted=40, epsilon_spent=epsilon * 40, reason="plan completed"))


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar that TensorBoard would show, to five digits: it keeps them in single precision."""
    reading: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = reading.EventAccumulator(str(directory))
    read.Reload()
    names = read.Tags()["scalars"]
    return {name: [(point.step, round(point.value, 5)) for point in read.Scalars(name)] for name in names}


def test_every_evaluation_and_the_first_and_last_epsilon_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(TensorBoard(tmp_path, clock=lambda: 0.0), tmp_path)
    written = scalars(tmp_path)
    rows = evaluations()
    assert written["accuracy/test"] == [(row.step, round(row.accuracy, 5)) for row in rows]
    assert written["loss/test"] == [(row.step, round(row.loss, 5)) for row in rows]
    assert written["accepted_fraction"] == [(row.step, 1.0) for row in rows]
    assert written["epsilon/proven"] == [(1, 0.01), (40, 0.4)]


def test_a_run_without_privacy_writes_no_epsilon(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train(TensorBoard(tmp_path), tmp_path, epsilon=math.inf)
    assert "epsilon/proven" not in scalars(tmp_path)


def test_without_the_extra_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lehr\[tensorboard\]'"):
        TensorBoard(tmp_path)
