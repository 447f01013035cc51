from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import MissingExtra
from lehr.integrations.loggers import LogMetrics, TensorBoard
from lehr.run.shape import End, Progress
from tests.reports.test_progress import START
from tests.written_runs import evaluations


def scalars(directory: Path, *, epsilon: float) -> dict[str, list[tuple[int, float]]]:
    """Every scalar that TensorBoard would show of a run, to five digits: it keeps them in single precision."""
    reading: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = TensorBoard(directory)
    board.started(START)
    for step in range(1, 41):
        board.stepped(Progress(step=step, accepted=step, epsilon_spent=epsilon * step))
    for row in evaluations():
        board.evaluated(row)
    board.ended(End(step=40, accepted=40, epsilon_spent=epsilon * 40, reason="plan completed"))
    read = reading.EventAccumulator(str(directory))
    read.Reload()
    names = read.Tags()["scalars"]
    return {name: [(point.step, round(point.value, 5)) for point in read.Scalars(name)] for name in names}


def test_every_evaluation_and_every_epsilon_are_written(tmp_path: Path) -> None:
    written, rows = scalars(tmp_path, epsilon=0.01), evaluations()
    assert written["accuracy/test"] == [(row.step, round(row.accuracy or 0, 5)) for row in rows]
    assert written["loss/test"] == [(row.step, round(row.loss, 5)) for row in rows]
    assert written["accepted_fraction"] == [(row.step, 1.0) for row in rows]
    assert written["epsilon/proven"] == [(step, round(0.01 * step, 5)) for step in range(1, 41)]


def test_run_without_privacy_writes_no_epsilon(tmp_path: Path) -> None:
    assert "epsilon/proven" not in scalars(tmp_path, epsilon=math.inf)


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtra, match="tensorboard"):
        TensorBoard(tmp_path)


def test_values_without_a_number_are_not_logged() -> None:
    logged: list[tuple[dict[str, float], int]] = []
    log = LogMetrics(lambda values, step: logged.append((values, step)), every=2)
    for step in range(1, 5):
        log.stepped(Progress(step=step, accepted=step, epsilon_spent=math.inf if step == 4 else 0.5))
    assert logged == [({"epsilon/proven": 0.5}, 2)]


def test_names_have_only_characters_that_trackers_allow() -> None:
    logged: dict[str, float] = {}
    row = replace(evaluations()[0], on="held-out records, noised (± 0.5%)")
    LogMetrics(lambda values, step: logged.update(values)).evaluated(row)
    assert all(re.fullmatch(r"[\w\-. /]+", name, re.ASCII) for name in logged)
    assert logged["loss/held-out records"] == row.loss
