"""What is shown of training, audits, simulations and searches, on a terminal and elsewhere."""

from __future__ import annotations

import io
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lehr.reports.progress import (
    BETWEEN_LINES,
    AuditProgress,
    Screen,
    SearchProgress,
    SimulationProgress,
    TrainingProgress,
    TrialRow,
    best_first,
    best_of,
    end_text,
    progress_for,
    start_text,
)
from lehr.run.shape import COMPLETED, Callback, End, Evaluation, Progress, Start
from tests.certificates.conftest import PROVEN, PUBLISHED

START = Start(
    run="first",
    directory=Path("first"),
    method="sa-dpsgd",
    steps=1000,
    first_step=0,
    expected_batch_size=64.0,
    epsilon=3.0,
    delta=1e-5,
)
END = End(step=1000, accepted=1000, epsilon_spent=2.99991, reason="plan completed")
STOPPED = End(step=7, accepted=7, epsilon_spent=0.5, reason="stopped")


def progress(step: int, *, accepted: int | None = None, epsilon: float = 1.23456) -> Progress:
    return Progress(step=step, accepted=step if accepted is None else accepted, epsilon_spent=epsilon)


def evaluation(step: int, *, on: str = "test") -> Evaluation:
    return Evaluation(
        step=step, accepted=step, epsilon_spent=1.23456, loss=0.5, accuracy=0.875, on=on, learning_rate=0.1
    )


class Clock:
    """A clock that moves when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(stream: io.StringIO, clock: Clock) -> TrainingProgress:
    return TrainingProgress(Screen(stream), clock=clock)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def run(callback: Callback, *, start: Start = START, end: End = END) -> None:
    callback.started(start)
    callback.stepped(progress(500))
    callback.evaluated(evaluation(500))
    callback.ended(end)


def drawn(display: TrainingProgress | SearchProgress) -> str:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as captured:
        console.print(display.frame())
    return captured.get()


def test_without_a_terminal_there_are_plain_lines(lines: TrainingProgress, stream: io.StringIO) -> None:
    run(lines)
    assert stream.getvalue().splitlines() == [
        "sa-dpsgd: 1,000 steps planned, proven ε = 3 at δ = 1e-05, in first",
        "step 500 of 1,000, ε 1.24 of 3, loss 0.5000, accuracy 87.5 % on test",
        "plan completed: 1,000 steps, proven ε 3 spent",
    ]


def test_lines_come_every_ten_seconds_however_fast_the_steps(
    lines: TrainingProgress, stream: io.StringIO, clock: Clock
) -> None:
    lines.started(START)
    for step in range(1, 1001):
        clock.now = step * 2.5 * BETWEEN_LINES / 1000
        lines.stepped(progress(step))
    assert len(stream.getvalue().splitlines()) == 1 + 2


def test_the_rate_is_of_the_expected_batch_and_leaves_the_first_step_out(
    lines: TrainingProgress, stream: io.StringIO, clock: Clock
) -> None:
    lines.started(START)
    for step, clock.now in ((1, 60.0), (11, 65.0), (21, 70.0)):
        lines.stepped(progress(step))
    assert stream.getvalue().splitlines()[-1].endswith("128 expected records/s")


def test_a_terminal_shows_the_time_left(terminal: Terminal, clock: Clock) -> None:
    display = TrainingProgress(Screen(terminal), clock=clock)
    display.started(START)
    for step, clock.now in ((1, 60.0), (21, 70.0)):
        display.stepped(progress(step))
    assert "21 of 1,000 steps · 8:10 left" in drawn(display)
    display.ended(END)


def test_rejected_candidates_are_counted(lines: TrainingProgress, stream: io.StringIO, clock: Clock) -> None:
    lines.started(START)
    clock.now = BETWEEN_LINES
    lines.stepped(progress(8))
    assert "accepted" not in stream.getvalue()
    clock.now = 2 * BETWEEN_LINES
    lines.stepped(progress(16, accepted=12))
    assert "12 of 16 candidates accepted" in stream.getvalue()


def test_a_run_without_privacy_shows_no_epsilon(lines: TrainingProgress, stream: io.StringIO) -> None:
    end = End(step=9, accepted=9, epsilon_spent=math.inf, reason="plan completed")
    run(lines, start=replace(START, epsilon=math.inf, first_step=3), end=end)
    assert "ε" not in stream.getvalue()
    assert "no privacy, resumed after step 3" in stream.getvalue()


def test_a_run_that_promises_nothing_spends_no_epsilon(lines: TrainingProgress, stream: io.StringIO) -> None:
    lines.started(replace(START, promises_nothing="it is a simulation"))
    lines.stepped(progress(1, epsilon=39.6))
    lines.ended(End(step=1, accepted=1, epsilon_spent=39.6, reason=COMPLETED))
    assert "no privacy: it is a simulation" in stream.getvalue()
    assert "39.6" not in stream.getvalue()


def test_quiet_says_nothing_but_why_a_run_stopped(stream: io.StringIO) -> None:
    quiet = TrainingProgress(Screen(stream), quiet=True)
    run(quiet)
    run(quiet, start=replace(START, stops_at_accepted=7), end=replace(STOPPED, step=9))
    assert stream.getvalue() == ""
    run(quiet, end=STOPPED)
    assert stream.getvalue() == "stopped: 7 steps, ε 0.5 spent; the proven ε is that of the whole plan, 3\n"


def test_a_published_epsilon_is_named_with_what_it_is_worth() -> None:
    text = start_text(replace(START, published=PUBLISHED, stops_at_accepted=100))
    assert "until 100 candidates are accepted, of at most 1,000, proven ε = 3" in text
    assert "(ε as published 1, not a guarantee)" in text
    assert "(ε as published 2.5, proven too)" in start_text(replace(START, published=PROVEN))
    assert "until its limit is spent, at most 1,000 steps" in start_text(replace(START, has_limit=True))
    end = End(step=9, accepted=7, epsilon_spent=math.inf, reason="plan completed")
    assert end_text(end) == "plan completed: 9 steps, 7 of them accepted"


@pytest.mark.parametrize("quiet", [False, True])
def test_everything_goes_to_standard_error(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    run(TrainingProgress(quiet=quiet), end=STOPPED)
    said = capsys.readouterr()
    assert said.out == ""
    assert "stopped: 7 steps" in said.err


def test_names_cannot_move_the_cursor(lines: TrainingProgress, stream: io.StringIO) -> None:
    lines.started(START)
    lines.evaluated(evaluation(1, on="te\x1b[2Jst\n"))
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2


def test_a_terminal_that_can_redraw_has_lines_in_place(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Screen(terminal).is_live
    assert not Screen(io.StringIO()).is_live
    monkeypatch.setenv("TERM", "dumb")
    assert not Screen(terminal).is_live


def test_a_terminal_gets_its_cursor_back_and_a_second_run_may_follow(terminal: Terminal) -> None:
    display = progress_for(terminal, quiet=False)
    run(display)
    first = terminal.getvalue()
    assert first.rindex("\x1b[?25h") > first.rindex("\x1b[?25l")
    for words in ("500 of 1,000 steps", "ε 1.24 of 3", "accuracy 87.5 % on test", "plan completed"):
        assert words in first
    display.started(START)
    display.ended(END)
    assert "plan completed" in terminal.getvalue()[len(first) :]
    assert "accuracy" not in terminal.getvalue()[len(first) :]


def test_what_is_printed_meanwhile_goes_where_it_would_have_gone(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    display = progress_for(terminal, quiet=False)
    display.started(START)
    sys.stdout.write("into a file\n")
    display.ended(END)
    assert capsys.readouterr().out == "into a file\n"
    assert "into a file" not in terminal.getvalue()


def test_the_runs_of_an_audit_are_numbered_and_their_folder_is_not_named(stream: io.StringIO) -> None:
    shown = AuditProgress("adadp", quiet=False, stream=stream)
    run(shown)
    run(shown)
    assert "attacking adadp: 1,000 steps" in stream.getvalue()
    assert "attacking adadp (run 2): 1,000 steps" in stream.getvalue()
    assert "in first" not in stream.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_simulated_runs_are_numbered(stream: io.StringIO, quiet: bool) -> None:
    shown = SimulationProgress(12, quiet=quiet, stream=stream)
    shown.passed_over(1, "batches of 8, seed 0", accuracy=0.5)
    shown.coming(2, "batches of 16, seed 0")
    run(shown, start=replace(START, promises_nothing="it is a simulation"), end=STOPPED)
    if quiet:
        assert stream.getvalue() == ""
        return
    assert "run 1 of 12, batches of 8, seed 0: done before, accuracy 50.0 %" in stream.getvalue()
    assert "run 2 of 12, batches of 16, seed 0: 1,000 steps planned, no privacy: it is a" in stream.getvalue()


FIRST = TrialRow(number=0, state="done", score=0.25, parameters={"optimizer": "sgd"})
BAD = TrialRow(number=1, state="failed", score=None, parameters={"optimizer": "adam"}, note="no longer\x1b[31m finite")
RUNNING = TrialRow(number=2, state="running", score=None, parameters={})


def test_a_search_has_a_line_for_every_trial(stream: io.StringIO) -> None:
    lines = SearchProgress(Screen(stream))
    lines.began([FIRST, RUNNING], trials=3, score="accuracy")
    lines.tried(BAD, [FIRST, BAD, RUNNING])
    assert stream.getvalue().splitlines() == [
        "2 trials to do, 1 done before",
        "trial 1 failed (best 25.00%, trial 0; 2 of 3 done): no longer [31m finite",
    ]


def test_a_terminal_shows_the_best_trial_and_the_running_one(stream: io.StringIO) -> None:
    display = SearchProgress(Screen(console=Console(file=stream, force_terminal=True, width=120)))
    display.began([], trials=3, score="loss")
    try:
        display.trying(0, {"optimizer": "sgd"})
        display.started(START)
        display.stepped(progress(2))
        assert "step 2" in drawn(display)
        display.evaluated(evaluation(3))
        assert "trial 0, step 3 of 1,000, 0.5000: optimizer sgd" in drawn(display)
        display.tried(replace(FIRST, score=0.75), [FIRST])
        assert "1 of 3 trials" in drawn(display)
    finally:
        display.closed([FIRST])
    assert "trial 0 done: 0.7500" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("score, best", [("accuracy", 2), ("loss", 1)])
def test_the_best_trial_has_the_largest_accuracy_or_the_smallest_loss(score: str, best: int) -> None:
    rows = [replace(FIRST, number=number, score=value) for number, value in enumerate((None, 0.25, 0.5, 0.5))]
    found = best_of(rows, score=score)
    assert found is not None
    assert found.number == best
    assert best_first(rows, score=score)[-1].score is None
    assert best_of([BAD], score=score) is None
    assert FIRST.to_json()["parameters"] == {"optimizer": "sgd"}
