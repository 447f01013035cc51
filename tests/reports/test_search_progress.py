from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from lehr.reports.search_progress import SearchDisplay, SearchLines, search_progress_for
from lehr.reports.search_rows import Row
from lehr.run_shape import Evaluation, Progress, Start

FIRST = Row(number=0, state="done", score=0.25, parameters={"optimizer": "sgd"})
BAD = Row(number=1, state="failed", score=None, parameters={"optimizer": "adam"}, note="no longer\x1b[31m finite")
RUNNING = Row(number=2, state="running", score=None, parameters={})
START = Start(
    run="r",
    directory=Path("r"),
    method="dpsgd",
    steps=9,
    first_step=0,
    expected_batch_size=8.0,
    epsilon=1.0,
    delta=1e-5,
)
EVALUATION = Evaluation(step=3, accepted=3, epsilon_spent=1.0, loss=0.75, accuracy=0.5, on="test", learning_rate=0.1)


def test_elsewhere_than_on_a_terminal_there_is_a_line_for_every_trial() -> None:
    lines = search_progress_for(stream := io.StringIO())
    assert isinstance(lines, SearchLines)
    lines.began([FIRST, RUNNING], trials=3, score="accuracy")
    lines.tried(BAD, [FIRST, BAD, RUNNING])
    assert stream.getvalue().splitlines() == [
        "2 trials to do, 1 done before",
        "trial 1 failed (best 25.00%, trial 0; 2 of 3 done): no longer [31m finite",
    ]


def test_a_terminal_shows_the_best_so_far_and_how_far_the_running_trial_is() -> None:
    console = Console(file=(stream := io.StringIO()), force_terminal=True, width=120)
    display = SearchDisplay(console)
    display.began([], trials=3, score="loss")
    try:
        display.trying(0, {"optimizer": "sgd"})
        display.started(START)
        display.stepped(Progress(step=2, accepted=2, epsilon_spent=1.0))
        assert "step 2" in _text(display)
        display.evaluated(EVALUATION)
        assert "trial 0, step 3 of 9, 0.7500: optimizer sgd" in _text(display)
        display.tried(Row(number=0, state="done", score=0.75, parameters={}), [FIRST])
        assert "1 of 3 trials" in _text(display)
    finally:
        display.closed([FIRST])
    assert "trial 0 done: 0.7500" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def _text(display: SearchDisplay) -> str:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as captured:
        console.print(display.drawn())
    return captured.get()
