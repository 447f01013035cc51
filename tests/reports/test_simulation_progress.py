from __future__ import annotations

import io
from pathlib import Path

import pytest

from lehr.reports.simulation_progress import SimulationProgress
from lehr.run_shape import COMPLETED, End, Evaluation, Progress, Start

START = Start(
    run="cheap",
    directory=Path("cheap"),
    method="dpsgd",
    steps=9,
    first_step=0,
    expected_batch_size=16.0,
    epsilon=500.0,
    delta=1e-5,
    promises_nothing="it is a simulation",
)
ROW = Evaluation(step=9, accepted=9, epsilon_spent=500.0, loss=0.5, accuracy=0.625, on="test", learning_rate=0.1)


def _told(*, quiet: bool, reason: str = COMPLETED) -> str:
    stream = io.StringIO()
    shown = SimulationProgress(12, quiet=quiet, stream=stream)
    shown.passed_over(1, "batches of 8, seed 0", accuracy=0.5)
    shown.coming(2, "batches of 16, seed 0")
    shown.started(START)
    shown.stepped(Progress(step=9, accepted=9, epsilon_spent=500.0))
    shown.evaluated(ROW)
    shown.ended(End(step=9, accepted=9, epsilon_spent=500.0, reason=reason))
    return stream.getvalue()


def test_each_run_has_its_place_and_what_it_reached() -> None:
    told = _told(quiet=False)
    assert "run 1 of 12, batches of 8, seed 0: done before, accuracy 50.0 %" in told
    assert "run 2 of 12, batches of 16, seed 0: 9 steps planned, no privacy: it is a simulation" in told
    assert "accuracy 62.5 % on test" in told


def test_no_epsilon_is_said_to_be_spent_by_a_run_that_promises_nothing() -> None:
    assert "plan completed: 9 steps\n" in _told(quiet=False)


@pytest.mark.parametrize("reason", [COMPLETED, "interrupted"])
def test_a_quiet_one_says_nothing(reason: str) -> None:
    assert _told(quiet=True, reason=reason) == ""
