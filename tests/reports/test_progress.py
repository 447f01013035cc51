from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lehr.reports.progress import BETWEEN_LINES, PlainLines, ProgressDisplay, Quiet, ending, planned, progress_for
from lehr.run_shape import COMPLETED, Callback, End, Evaluation, Progress, Start
from tests.reports.conftest import PROVEN, PUBLISHED

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


def progress(step: int, *, accepted: int | None = None, epsilon: float = 1.23456) -> Progress:
    return Progress(step=step, accepted=step if accepted is None else accepted, epsilon_spent=epsilon)


def evaluation(step: int, *, on: str = "test") -> Evaluation:
    return Evaluation(
        step=step, accepted=step, epsilon_spent=1.23456, loss=0.5, accuracy=0.875, on=on, learning_rate=0.1
    )


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(stream: io.StringIO, clock: Clock) -> PlainLines:
    return PlainLines(stream, clock=clock)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


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


def test_plain_lines_say_step_epsilon_loss_accuracy_and_the_end(lines: PlainLines, stream: io.StringIO) -> None:
    run(lines)
    assert stream.getvalue().splitlines() == [
        "sa-dpsgd: 1,000 steps planned, proven ε = 3 at δ = 1e-05, in first",
        "step 500 of 1,000, ε 1.24 of 3, loss 0.5000, accuracy 87.5 % on test",
        "plan completed: 1,000 steps, proven ε 3 spent",
    ]


def test_plain_lines_come_once_in_a_while_however_fast_the_steps(
    lines: PlainLines, stream: io.StringIO, clock: Clock
) -> None:
    lines.started(START)
    for step in range(1, 1001):
        clock.now = step * 2.5 * BETWEEN_LINES / 1000
        lines.stepped(progress(step))
    assert len(stream.getvalue().splitlines()) == 1 + 2


def test_the_rate_is_of_the_expected_batch_and_leaves_the_first_step_out(
    lines: PlainLines, stream: io.StringIO, clock: Clock
) -> None:
    lines.started(START)
    for step, clock.now in ((1, 60.0), (11, 65.0), (21, 70.0)):
        lines.stepped(progress(step))
    assert stream.getvalue().splitlines()[-1].endswith("128 expected records/s")


def test_a_display_on_a_terminal_says_the_time_left(terminal: Terminal, clock: Clock) -> None:
    display = ProgressDisplay(Console(file=terminal), clock=clock)
    display.started(START)
    for step, clock.now in ((1, 60.0), (21, 70.0)):
        display.stepped(progress(step))
    console = Console(file=io.StringIO(), width=120)
    console.print(display.drawn())
    assert "21 of 1,000 steps · 8:10 left" in console.file.getvalue()  # type: ignore[attr-defined]
    display.ended(END)


def test_the_acceptance_rate_is_shown_only_where_something_was_rejected(
    lines: PlainLines, stream: io.StringIO, clock: Clock
) -> None:
    lines.started(START)
    clock.now = BETWEEN_LINES
    lines.stepped(progress(8))
    assert "accepted" not in stream.getvalue()
    clock.now = 2 * BETWEEN_LINES
    lines.stepped(progress(16, accepted=12))
    assert "12 of 16 candidates accepted" in stream.getvalue()


def test_a_run_without_privacy_shows_no_epsilon(lines: PlainLines, stream: io.StringIO) -> None:
    start = Start(
        run="plain", directory=Path(), method="sgd", steps=9, first_step=3, expected_batch_size=4, epsilon=math.inf,
        delta=1e-5,
    )  # fmt: skip
    run(lines, start=start, end=End(step=9, accepted=9, epsilon_spent=math.inf, reason="plan completed"))
    assert "ε" not in stream.getvalue()
    assert "no privacy, resumed after step 3" in stream.getvalue()


def test_quiet_says_nothing_but_why_a_run_stopped(stream: io.StringIO) -> None:
    run(Quiet(stream))
    assert stream.getvalue() == ""
    run(Quiet(stream), end=End(step=7, accepted=7, epsilon_spent=0.5, reason="the loss is no longer a number"))
    assert stream.getvalue() == (
        "the loss is no longer a number: 7 steps, ε 0.5 spent; the proven ε is that of the whole plan, 3\n"
    )


def test_the_number_of_a_papers_rule_is_said_with_what_it_is() -> None:
    start = replace(START, published=PUBLISHED, stops_at_accepted=100)
    assert planned(start) == (
        "sa-dpsgd: until 100 candidates are accepted, of at most 1,000, proven ε = 3 at δ = 1e-05 "
        "(ε as published 1, not a guarantee), in first"
    )
    assert "(ε as published 2.5, proven too)" in planned(replace(START, published=PROVEN))


def test_quiet_says_nothing_where_a_run_ended_at_its_accepted_candidates(stream: io.StringIO) -> None:
    quiet = Quiet(stream)
    quiet.started(replace(START, stops_at_accepted=7))
    quiet.ended(End(step=9, accepted=7, epsilon_spent=0.5, reason="7 candidates accepted"))
    assert stream.getvalue() == ""
    quiet.ended(End(step=9, accepted=6, epsilon_spent=0.5, reason="interrupted"))
    assert "interrupted" in stream.getvalue()


def test_the_end_says_how_many_candidates_were_accepted_where_some_were_not() -> None:
    end = End(step=9, accepted=7, epsilon_spent=math.inf, reason="plan completed")
    assert ending(end) == "plan completed: 9 steps, 7 of them accepted"


@pytest.mark.parametrize("make", [PlainLines, Quiet, ProgressDisplay])
def test_everything_goes_to_standard_error(make: Callable[[], Callback], capsys: pytest.CaptureFixture[str]) -> None:
    run(make(), end=End(step=7, accepted=7, epsilon_spent=0.5, reason="stopped"))
    said = capsys.readouterr()
    assert said.out == ""
    assert "stopped: 7 steps" in said.err


def test_names_cannot_move_the_cursor(lines: PlainLines, stream: io.StringIO) -> None:
    lines.started(START)
    lines.evaluated(evaluation(1, on="te\x1b[2Jst\n"))
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2


def test_the_display_suits_the_stream(stream: io.StringIO, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(progress_for(terminal, quiet=False), ProgressDisplay)
    assert isinstance(progress_for(stream, quiet=False), PlainLines)
    assert isinstance(progress_for(terminal, quiet=True), Quiet)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress_for(terminal, quiet=False), PlainLines)


def test_a_terminal_gets_its_cursor_back_and_the_last_state(terminal: Terminal) -> None:
    run(progress_for(terminal, quiet=False))
    drawn = terminal.getvalue()
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
    for words in ("500 of 1,000 steps", "ε 1.24 of 3", "accuracy 87.5 % on test", "plan completed"):
        assert words in drawn


def test_what_is_printed_meanwhile_goes_where_it_would_have_gone(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    display = progress_for(terminal, quiet=False)
    display.started(START)
    sys.stdout.write("into a file\n")
    display.ended(END)
    assert capsys.readouterr().out == "into a file\n"
    assert "into a file" not in terminal.getvalue()


def test_a_second_run_may_follow_on_the_same_display(terminal: Terminal) -> None:
    display = progress_for(terminal, quiet=False)
    run(display)
    before = len(terminal.getvalue())
    display.started(START)
    display.ended(END)
    assert "plan completed" in terminal.getvalue()[before:]
    assert "accuracy" not in terminal.getvalue()[before:]


def test_a_run_under_a_limit_says_that_its_steps_are_the_most_there_can_be() -> None:
    assert "until its limit is spent, at most 100 steps" in planned(replace(START, steps=100, has_limit=True))


def test_a_run_that_promises_nothing_spends_no_epsilon() -> None:
    stream = io.StringIO()
    lines = PlainLines(stream)
    lines.started(replace(START, promises_nothing="it is a simulation"))
    lines.stepped(Progress(step=1, accepted=1, epsilon_spent=39.6))
    lines.ended(End(step=1, accepted=1, epsilon_spent=39.6, reason=COMPLETED))
    assert "no privacy: it is a simulation" in stream.getvalue()
    assert "39.6" not in stream.getvalue()
