"""What is shown of training and searches, on a terminal and elsewhere."""

from __future__ import annotations

import io
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.reports.progress import (
    BETWEEN_LINES,
    Screen,
    SearchProgress,
    TrainingProgress,
    TrialRow,
    best_first,
    best_of,
    end_text,
    start_text,
)
from lehr.run.shape import COMPLETED, End, Evaluation, Progress, Start
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
    return TrainingProgress(Screen(stream, clock=clock))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal()


def run(display: TrainingProgress, *, start: Start = START, end: End = END) -> None:
    display.started(start)
    display.stepped(progress(500))
    display.evaluated(evaluation(500))
    display.ended(end)


def test_without_a_terminal_there_are_plain_lines(lines: TrainingProgress, stream: io.StringIO) -> None:
    run(lines)
    assert stream.getvalue().splitlines() == [
        "sa-dpsgd: 1,000 steps planned, proven ε = 3 at δ = 1e-05, in first",
        "step 500 of 1,000, ε 1.24 of 3, loss 0.5000, accuracy 87.5 % on test",
        "plan completed: 1,000 steps, proven ε 3 spent",
    ]


def test_lines_come_every_ten_seconds_with_the_rate_of_expected_records(
    lines: TrainingProgress, stream: io.StringIO, clock: Clock
) -> None:
    lines.started(START)
    clock.now = 60.0  # the first step compiles, and does not count
    lines.stepped(progress(1))
    for step in range(2, 52):
        clock.now += 0.5
        lines.stepped(progress(step))
    shown = stream.getvalue().splitlines()
    assert len(shown) == 1 + 1 + int(25 / BETWEEN_LINES)
    assert shown[-1].endswith("128 expected records/s")


def test_rejected_candidates_are_counted(lines: TrainingProgress, stream: io.StringIO, clock: Clock) -> None:
    lines.started(START)
    for step, accepted in ((8, 8), (16, 12)):
        clock.now += BETWEEN_LINES
        assert "accepted" not in stream.getvalue()
        lines.stepped(progress(step, accepted=accepted))
    assert "12 of 16 candidates accepted" in stream.getvalue()


def test_run_without_privacy_shows_no_epsilon(lines: TrainingProgress, stream: io.StringIO) -> None:
    endless = End(step=9, accepted=9, epsilon_spent=math.inf, reason="plan completed")
    run(lines, start=replace(START, epsilon=math.inf, first_step=3), end=endless)
    assert "no privacy, resumed after step 3" in stream.getvalue()
    simulated = End(step=1, accepted=1, epsilon_spent=39.6, reason=COMPLETED)
    run(lines, start=replace(START, epsilon=39.6, promises_nothing="it is a simulation"), end=simulated)
    assert "no privacy: it is a simulation" in stream.getvalue()
    assert "ε" not in stream.getvalue()


def test_quiet_only_says_why_a_run_stopped(stream: io.StringIO) -> None:
    quiet = TrainingProgress(Screen(stream), quiet=True)
    run(quiet)
    run(quiet, start=replace(START, stops_at_accepted=7), end=replace(STOPPED, step=9))
    assert stream.getvalue() == ""
    run(quiet, end=STOPPED)
    assert stream.getvalue() == "stopped: 7 steps, ε 0.5 spent; the proven ε is that of the whole plan, 3\n"


def test_published_epsilon_is_named_with_its_worth() -> None:
    text = start_text(replace(START, published=PUBLISHED, stops_at_accepted=100))
    assert "until 100 candidates are accepted, of at most 1,000, proven ε = 3" in text
    assert "(ε as published 1, not a guarantee)" in text
    assert "(ε as published 2.5, proven too)" in start_text(replace(START, published=PROVEN))
    assert "until its limit is spent, at most 1,000 steps" in start_text(replace(START, has_limit=True))
    assert start_text(START, label="attacking adadp").startswith("attacking adadp: 1,000 steps planned")
    assert "first" not in start_text(START, label="attacking adadp")
    end = End(step=9, accepted=7, epsilon_spent=math.inf, reason="plan completed")
    assert end_text(end) == "plan completed: 9 steps, 7 of them accepted"


@pytest.mark.parametrize("quiet", [False, True])
def test_progress_goes_to_standard_error(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    run(TrainingProgress(quiet=quiet), end=STOPPED)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "stopped: 7 steps" in shown.err


def test_names_cannot_move_the_cursor(lines: TrainingProgress, stream: io.StringIO) -> None:
    lines.started(START)
    lines.evaluated(evaluation(1, on="te\x1b[2Jst\n"))
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2


def test_only_a_terminal_that_can_redraw_is_live(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Screen(terminal).is_live
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not Screen(io.StringIO()).is_live
    monkeypatch.setenv("TERM", "dumb")
    assert not Screen(terminal).is_live


def test_terminal_shows_a_bar_and_gets_its_cursor_back(
    terminal: Terminal, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    display = TrainingProgress(Screen(terminal, clock=clock))
    display.started(START)
    for step, clock.now in ((1, 60.0), (21, 70.0)):
        display.stepped(progress(step))
    display.evaluated(evaluation(500))
    sys.stdout.write("into a file\n")
    display.ended(END)
    first = terminal.getvalue()
    assert first.rindex("\x1b[?25h") > first.rindex("\x1b[?25l")
    for words in ("500 of 1,000 steps", "ε 1.24 of 3", "accuracy 87.5 % on test", "plan completed"):
        assert words in first
    assert capsys.readouterr().out == "into a file\n"  # what is printed meanwhile goes where it would have gone
    run(display, end=STOPPED)  # a second run may follow
    assert "stopped" in terminal.getvalue()[len(first) :]


FIRST = TrialRow(number=0, state="done", score=0.25, parameters={"optimizer": "sgd"})
BAD = TrialRow(number=1, state="failed", score=None, parameters={"optimizer": "adam"}, note="no longer\x1b[31m finite")
RUNNING = TrialRow(number=2, state="running", score=None, parameters={})


def test_search_has_a_line_for_every_trial(stream: io.StringIO) -> None:
    lines = SearchProgress(Screen(stream))
    lines.began([FIRST, RUNNING], trials=3, score="accuracy")
    lines.tried(BAD, [FIRST, BAD, RUNNING])
    lines.closed([FIRST, BAD, RUNNING])
    assert stream.getvalue().splitlines() == [
        "2 trials to do, 1 done before",
        "trial 1 failed (best 25.00%, trial 0; 2 of 3 done): no longer [31m finite",
    ]


def test_terminal_shows_the_best_trial_and_the_running_one(terminal: Terminal) -> None:
    display = SearchProgress(Screen(terminal))
    display.began([FIRST], trials=3, score="loss")
    display.trying(1, {"optimizer": "adam"})
    display.started(START)
    display.stepped(progress(2))
    display.evaluated(evaluation(3))
    display.closed([FIRST])
    shown = terminal.getvalue()
    assert "1 of 3 trials" in shown
    assert "best 0.2500, trial 0  trial 1: optimizer adam  step 3 of 1,000, 0.5000" in shown
    assert shown.rstrip().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("score, best", [("accuracy", 2), ("loss", 1)])
def test_best_trial_has_the_largest_accuracy_or_the_smallest_loss(score: str, best: int) -> None:
    rows = [replace(FIRST, number=number, score=value) for number, value in enumerate((None, 0.25, 0.5, 0.5))]
    found = best_of(rows, score=score)
    assert found is not None
    assert found.number == best
    assert best_first(rows, score=score)[-1].score is None
    assert best_of([BAD], score=score) is None
