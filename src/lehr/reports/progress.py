"""How a run goes, on standard error: a live display on a terminal, plain lines elsewhere, or nothing.

>>> import io
>>> from pathlib import Path
>>> from lehr.run_shape import End, Evaluation, Start
>>> lines = PlainLines(stream := io.StringIO())
>>> lines.started(Start(run="first", directory=Path("first"), method="dpsgd", steps=100, first_step=0,
...     expected_batch_size=64.0, epsilon=3.0, delta=1e-5))
>>> lines.evaluated(Evaluation(step=50, accepted=50, epsilon_spent=1.2341, loss=0.25, accuracy=0.915, on="test",
...     learning_rate=0.1))
>>> print(stream.getvalue(), end="")
dpsgd: 100 steps planned, proven ε = 3 at δ = 1e-05, in first
step 50 of 100, ε 1.24 of 3, loss 0.2500, accuracy 91.5 % on test

A step costs no more than noting where the run stands; what is shown is drawn a few times a second, by a thread of its
own on a terminal. Rates are of the expected batch: how many records a step really drew is private.
"""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lehr.claims import Claim
from lehr.reports.rounding import exactly, rounded_up
from lehr.run_shape import COMPLETED, SPENT, Callback, End, Evaluation, Progress, Start

BETWEEN_LINES = 10.0  # seconds
FRAMES_PER_SECOND = 4.0
WIDEST_BAR = 40

Clock = Callable[[], float]


def progress_for(stream: TextIO, *, quiet: bool) -> Callback:
    """What suits the stream: a live display on a terminal, plain lines elsewhere; with ``quiet`` only bad news."""
    if quiet:
        return Quiet(stream)
    console = Console(file=stream)
    return ProgressDisplay(console) if stream.isatty() and not console.is_dumb_terminal else PlainLines(stream)


class Quiet(Callback):
    """Says nothing, but why a run ended before its plan did."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._enough = math.inf
        self._start: Start | None = None

    def started(self, start: Start) -> None:
        """Note at how many accepted candidates the run is to end."""
        self._start = start
        self._enough = math.inf if start.stops_at_accepted is None else start.stops_at_accepted

    def ended(self, end: End) -> None:
        """Say why, where the plan was not completed."""
        if end.reason not in (COMPLETED, SPENT) and end.accepted < self._enough:
            print(ending(end, self._start), file=_or_standard_error(self._stream), flush=True)


class PlainLines(Callback):
    """A line for every evaluation, and one every ten seconds."""

    def __init__(self, stream: TextIO | None = None, *, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._standing = Standing(None, clock=clock)
        self._next_line = 0.0

    def started(self, start: Start) -> None:
        """Say what was planned."""
        self._standing = Standing(start, clock=self._clock)
        self._say(planned(start))

    def stepped(self, progress: Progress) -> None:
        """Note it, and say it where nothing was said for a while."""
        self._standing.step(progress)
        if self._standing.seen_at >= self._next_line:
            self._say(", ".join(self._standing.facts()))

    def evaluated(self, evaluation: Evaluation) -> None:
        """Say it."""
        self._standing.evaluate(evaluation)
        self._say(", ".join(self._standing.facts()))

    def ended(self, end: End) -> None:
        """Say how it ended."""
        self._say(ending(end, self._standing.start))

    def _say(self, line: str) -> None:
        self._next_line = self._clock() + BETWEEN_LINES
        print(line, file=_or_standard_error(self._stream), flush=True)


class ProgressDisplay(Callback):
    """Two lines that stay in their place on a terminal while the run goes on."""

    def __init__(self, console: Console | None = None, *, clock: Clock = time.monotonic) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._clock = clock
        self._standing = Standing(None, clock=clock)
        self._live: Live | None = None

    def started(self, start: Start) -> None:
        """Say what was planned, and begin to draw."""
        self._close()
        self._standing = Standing(start, clock=self._clock)
        self._console.print(Text(planned(start)))
        self._live = Live(
            get_renderable=self.drawn,
            console=self._console,
            refresh_per_second=FRAMES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),  # what a program prints into a file goes on into that file
        )
        self._live.start(refresh=True)
        atexit.register(self._close)  # a hidden cursor would outlive a run that ends without a word

    def stepped(self, progress: Progress) -> None:
        """Note it; the next frame shows it."""
        self._standing.step(progress)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Note it; the next frame shows it."""
        self._standing.evaluate(evaluation)

    def ended(self, end: End) -> None:
        """Draw once more, and say how it ended."""
        self._standing.is_over = True
        self._close()
        self._console.print(Text(ending(end, self._standing.start)))

    def drawn(self) -> Group:
        """One frame."""
        standing = self._standing
        start, step = standing.start, standing.now_at
        if start is None:
            return Group()
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            # rich's own green is grey where a terminal has sixteen colours, like a bar that has not begun
            ProgressBar(
                total=start.steps,
                completed=step,
                width=min(WIDEST_BAR, self._console.width // 3),
                finished_style="green",
            ),
            Text(" ".join(filter(None, (f"{step:,} of {start.steps:,} steps", standing.time_left())))),
        )
        return Group(bar, Text("  ".join(standing.facts()[1:])))

    def _close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            atexit.unregister(self._close)


class Standing:
    """Where a run stands, as far as it was told, and that in words. Everything in it is public."""

    def __init__(self, start: Start | None, *, clock: Clock) -> None:
        self.start = start
        self.is_over = False
        self.seen_at = 0.0
        self._clock = clock
        self._progress: Progress | None = None
        self._evaluation: Evaluation | None = None
        self._first: tuple[int, float] | None = None

    def step(self, progress: Progress) -> None:
        """After a step."""
        self._progress = progress
        self.seen_at = self._clock()
        if self._first is None:  # the first step of a run may compile for a minute and says nothing about the others
            self._first = (progress.step, self.seen_at)

    def evaluate(self, evaluation: Evaluation) -> None:
        """After an evaluation."""
        self._evaluation = evaluation
        self._progress = Progress(
            step=evaluation.step, accepted=evaluation.accepted, epsilon_spent=evaluation.epsilon_spent
        )

    @property
    def now_at(self) -> int:
        """The steps that are done."""
        if self._progress is not None:
            return self._progress.step
        return 0 if self.start is None else self.start.first_step

    def facts(self) -> list[str]:
        """What there is to say, the step first."""
        if self.start is None:
            return [f"step {self.now_at:,}"]
        facts = [f"step {self.now_at:,}" + ("" if self.start.has_limit else f" of {self.start.steps:,}")]
        if self._progress is not None:
            of = self.start.epsilon if self.start.promises_nothing is None else math.inf
            facts.append(_spent(self._progress.epsilon_spent, of=of))
        if (evaluation := self._evaluation) is not None:
            on = one_line(evaluation.on)
            facts += [f"loss {evaluation.loss:.4f}", f"accuracy {100 * evaluation.accuracy:.1f} % on {on}"]
        if (progress := self._progress) is not None and progress.accepted < progress.step:
            facts.append(f"{progress.accepted:,} of {progress.step:,} candidates accepted")
        if (rate := self._steps_per_second()) is not None:
            facts.append(f"{rate * self.start.expected_batch_size:,.0f} expected records/s")
        return facts

    def time_left(self) -> str:
        """At the rate so far; nothing while there is no rate, and at the end."""
        rate = self._steps_per_second()
        if self.start is None or rate is None or self.is_over:
            return ""
        seconds = math.ceil((self.start.steps - self.now_at) / rate)
        hours, minutes = divmod(seconds // 60, 60)
        return f"· {f'{hours}:{minutes:02}' if hours else minutes}:{seconds % 60:02} left"

    def _steps_per_second(self) -> float | None:
        if self._first is None or self._progress is None:
            return None
        first_step, first_at = self._first
        steps, seconds = self._progress.step - first_step, self.seen_at - first_at
        return steps / seconds if steps > 0 and seconds > 0 else None


def planned(start: Start) -> str:
    """The first line of every display."""
    promise = "no privacy"
    if start.epsilon != math.inf:
        promise = f"proven ε = {_up(start.epsilon)} at δ = {exactly(start.delta)}"
    if start.promises_nothing is not None:
        promise = f"no privacy: {one_line(start.promises_nothing)}"
    since = f", resumed after step {start.first_step:,}" if start.first_step else ""
    if start.published is not None:
        promise += f" (ε as published {_published(start.published)})"
    steps = f"{start.steps:,} steps planned"
    if start.stops_at_accepted is not None:
        steps = f"until {start.stops_at_accepted:,} candidates are accepted, of at most {start.steps:,}"
    elif start.has_limit:
        steps = f"until its limit is spent, at most {start.steps:,} steps"
    where = one_line(str(start.directory))
    return f"{one_line(start.method)}: {steps}, {promise}{since}, in {where}"


def _published(claim: Claim) -> str:
    return f"{_up(claim.epsilon)}, {'proven too' if claim.is_proven else 'not a guarantee'}"


def ending(end: End, start: Start | None = None) -> str:
    """The last line of every display. Where nothing is promised, no ε is spent."""
    promises_nothing = end.epsilon_spent == math.inf or (start is not None and start.promises_nothing is not None)
    spent = "" if promises_nothing else f", {_charged(end.epsilon_spent, start)}"
    accepted = "" if end.accepted == end.step else f", {end.accepted:,} of them accepted"
    return f"{one_line(end.reason)}: {end.step:,} steps{accepted}{spent}"


def _charged(spent: float, start: Start | None) -> str:
    """What was spent is what is proven where the plan went to its end; a run that ends before is charged for all."""
    if start is None or start.has_limit or _up(start.epsilon) == _up(spent):
        return f"proven ε {_up(spent)} spent"
    return f"ε {_up(spent)} spent; the proven ε is that of the whole plan, {_up(start.epsilon)}"


def one_line(text: str) -> str:
    """The text without anything that could move a cursor or change a colour."""
    return "".join(mark if mark.isprintable() else " " for mark in text)


def _spent(epsilon: float, *, of: float) -> str:
    return "no privacy" if of == math.inf else f"ε {_up(epsilon)} of {_up(of)}"


def _up(epsilon: float) -> str:
    return f"{rounded_up(epsilon, digits=3):.3g}"


def _or_standard_error(stream: TextIO | None) -> TextIO:
    return sys.stderr if stream is None else stream
