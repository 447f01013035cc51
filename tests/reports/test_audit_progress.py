from __future__ import annotations

import io
from pathlib import Path

from lehr.reports.audit_progress import GameProgress
from lehr.run_shape import COMPLETED, End, Evaluation, Progress, Start

START = Start(
    run="game",
    directory=Path("somewhere-of-our-own"),
    method="adadp",
    steps=4,
    first_step=0,
    expected_batch_size=8.0,
    epsilon=3.0,
    delta=1e-5,
)


def told(*, quiet: bool) -> str:
    stream = io.StringIO()
    progress = GameProgress("adadp", quiet=quiet, stream=stream)
    for _ in range(2):
        progress.started(START)
        progress.stepped(Progress(step=1, accepted=1, epsilon_spent=1.0))
        progress.evaluated(
            Evaluation(step=1, accepted=1, epsilon_spent=1.0, loss=0.5, accuracy=0.5, on="test", learning_rate=0.1)
        )
        progress.ended(End(step=4, accepted=4, epsilon_spent=3.0, reason=COMPLETED))
    return stream.getvalue()


def test_every_run_of_a_game_is_told_and_its_folder_is_not() -> None:
    words = told(quiet=False)
    assert "attacking adadp: 4 steps planned, proven ε = 3" in words
    assert "attacking adadp (run 2 of the game): 4 steps" in words
    assert "step 1 of 4" in words
    assert words.count("plan completed: 4 steps") == 2
    assert "somewhere-of-our-own" not in words


def test_with_quiet_nothing_is_said() -> None:
    assert told(quiet=True) == ""
