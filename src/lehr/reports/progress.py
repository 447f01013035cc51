"""Progress on standard error: of training, audits, simulations and searches. One display for all of them.

On a terminal two lines stay in place and are redrawn a few times a second; elsewhere there are plain lines. Rates use
the expected batch: how many records a step really drew is private.

>>> import io
>>> lines = TrainingProgress(Screen(stream := io.StringIO()))
>>> lines.started(Start(run="first", directory=Path("first"), method="dpsgd", steps=100, first_step=0,
...     expected_batch_size=64.0, epsilon=3.0, delta=1e-5))
>>> lines.evaluated(Evaluation(step=50, accepted=50, epsilon_spent=1.2341, loss=0.25, accuracy=0.915, on="test",
...     learning_rate=0.1))
>>> print(stream.getvalue(), end="")
dpsgd: 100 steps planned, proven ε = 3 at δ = 1e-05, in first
step 50 of 100, ε 1.24 of 3, loss 0.2500, accuracy 91.5 % on test
"""

from __future__ import annotations

import atexit
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lehr.rounding import exactly, rounded_up
from lehr.run.shape import COMPLETED, SPENT, Callback, End, Evaluation, Progress, Start

BETWEEN_LINES = 10.0  # seconds
FRAMES_PER_SECOND = 4.0
WIDEST_BAR = 40
TEMPORARY = Path("a temporary folder")

Clock = Callable[[], float]


class Screen:
    """Where progress is shown: lines that stay in place if the stream is a terminal, plain lines otherwise."""

    def __init__(self, stream: TextIO | None = None, *, console: Console | None = None) -> None:
        self._stream = stream  # None: standard error at the time of writing
        terminal = sys.stderr if stream is None else stream
        self._console = console or Console(file=terminal)
        self.is_live = console is not None or (terminal.isatty() and not self._console.is_dumb_terminal)
        self._live: Live | None = None

    def say(self, line: str) -> None:
        """Print a line, above the lines that stay in place."""
        if self.is_live:
            self._console.print(Text(one_line(line)))
        else:
            print(one_line(line), file=sys.stderr if self._stream is None else self._stream, flush=True)

    def show(self, frame: Callable[[], Group]) -> None:
        """Draw ``frame`` again and again until ``close``; only on a terminal."""
        self.close()
        if self.is_live:
            self._live = Live(
                get_renderable=frame,
                console=self._console,
                refresh_per_second=FRAMES_PER_SECOND,
                redirect_stdout=sys.stdout.isatty(),  # output that goes to a file continues to go there
            )
            self._live.start(refresh=True)
            atexit.register(self.close)  # otherwise the cursor stays hidden if the program ends early

    def close(self) -> None:
        """Draw once more and stop."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            atexit.unregister(self.close)

    def bar(self, done: int, total: int, text: str) -> Table:
        """A progress bar with a text beside it."""
        grid = Table.grid(padding=(0, 1))
        width = min(WIDEST_BAR, self._console.width // 3)
        # rich's own green is grey on a terminal with sixteen colours, like a bar that has not begun
        grid.add_row(ProgressBar(total=total, completed=done, width=width, finished_style="green"), Text(text))
        return grid


def one_line(text: str) -> str:
    """The text without control characters, which could move the cursor or change colours."""
    return "".join(mark if mark.isprintable() else " " for mark in text)


# Training.


def progress_for(stream: TextIO | None, *, quiet: bool) -> TrainingProgress:
    """The display for a stream."""
    return TrainingProgress(Screen(stream), quiet=quiet)


class TrainingProgress(Callback):
    """Steps, ε, scores, rate and time left. Without a terminal: a line per evaluation, and one every ten seconds.

    With ``quiet`` it only says why a run ended before its plan did.
    """

    def __init__(self, screen: Screen | None = None, *, clock: Clock = time.monotonic, quiet: bool = False) -> None:
        self._screen, self._clock, self._quiet = screen or Screen(), clock, quiet
        self._start: Start | None = None
        self._progress: Progress | None = None
        self._evaluation: Evaluation | None = None
        self._first: tuple[int, float] | None = None
        self._seen_at = self._next_line = 0.0
        self._is_over = False

    def started(self, start: Start) -> None:
        self._start, self._is_over = start, False
        self._progress = self._evaluation = self._first = None
        if not self._quiet:
            self._say(start_text(start))
            self._screen.show(self.frame)

    def stepped(self, progress: Progress) -> None:
        self._progress, self._seen_at = progress, self._clock()
        if self._first is None:  # the first step may compile for a minute and says nothing about the others
            self._first = (progress.step, self._seen_at)
        if self._seen_at >= self._next_line:
            self._say_facts()

    def evaluated(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._progress = Progress(
            step=evaluation.step, accepted=evaluation.accepted, epsilon_spent=evaluation.epsilon_spent
        )
        self._say_facts()

    def ended(self, end: End) -> None:
        self._is_over = True
        self._screen.close()
        enough = None if self._start is None else self._start.stops_at_accepted
        is_planned = end.reason in (COMPLETED, SPENT) or (enough is not None and end.accepted >= enough)
        if not (self._quiet and is_planned):
            self._say(end_text(end, self._start))

    def frame(self) -> Group:
        """What a terminal shows now."""
        if self._start is None:
            return Group()
        step, total = self._step, self._start.steps
        text = " ".join(filter(None, (f"{step:,} of {total:,} steps", self._time_left())))
        return Group(self._screen.bar(step, total, text), Text("  ".join(self._facts()[1:])))

    def _say(self, line: str) -> None:
        self._next_line = self._clock() + BETWEEN_LINES
        self._screen.say(line)

    def _say_facts(self) -> None:
        if not self._screen.is_live and not self._quiet:
            self._say(", ".join(self._facts()))

    @property
    def _step(self) -> int:
        if self._progress is not None:
            return self._progress.step
        return 0 if self._start is None else self._start.first_step

    def _facts(self) -> list[str]:
        """What is known, the step first. All of it is public."""
        start, progress, evaluation = self._start, self._progress, self._evaluation
        if start is None:
            return [f"step {self._step:,}"]
        facts = [f"step {self._step:,}" + ("" if start.has_limit else f" of {start.steps:,}")]
        if progress is not None:
            of = start.epsilon if start.promises_nothing is None else math.inf
            facts.append("no privacy" if of == math.inf else f"ε {_up(progress.epsilon_spent)} of {_up(of)}")
        if evaluation is not None:
            facts += [f"loss {evaluation.loss:.4f}", f"accuracy {100 * evaluation.accuracy:.1f} % on {evaluation.on}"]
        if progress is not None and progress.accepted < progress.step:
            facts.append(f"{progress.accepted:,} of {progress.step:,} candidates accepted")
        if (rate := self._steps_per_second()) is not None:
            facts.append(f"{rate * start.expected_batch_size:,.0f} expected records/s")
        return [*map(one_line, facts)]

    def _time_left(self) -> str:
        rate = self._steps_per_second()
        if self._start is None or rate is None or self._is_over:
            return ""
        seconds = math.ceil((self._start.steps - self._step) / rate)
        hours, minutes = divmod(seconds // 60, 60)
        return f"· {f'{hours}:{minutes:02}' if hours else minutes}:{seconds % 60:02} left"

    def _steps_per_second(self) -> float | None:
        if self._first is None or self._progress is None:
            return None
        steps, seconds = self._progress.step - self._first[0], self._seen_at - self._first[1]
        return steps / seconds if steps > 0 and seconds > 0 else None


def start_text(start: Start) -> str:
    """What is planned, in a line."""
    promise = "no privacy"
    if start.epsilon != math.inf:
        promise = f"proven ε = {_up(start.epsilon)} at δ = {exactly(start.delta)}"
    if start.promises_nothing is not None:
        promise = f"no privacy: {start.promises_nothing}"
    if (claim := start.published) is not None:
        worth = "proven too" if claim.is_proven else "not a guarantee"
        promise += f" (ε as published {_up(claim.epsilon)}, {worth})"
    since = f", resumed after step {start.first_step:,}" if start.first_step else ""
    steps = f"{start.steps:,} steps planned"
    if start.stops_at_accepted is not None:
        steps = f"until {start.stops_at_accepted:,} candidates are accepted, of at most {start.steps:,}"
    elif start.has_limit:
        steps = f"until its limit is spent, at most {start.steps:,} steps"
    return one_line(f"{start.method}: {steps}, {promise}{since}, in {start.directory}")


def end_text(end: End, start: Start | None = None) -> str:
    """How a run ended, in a line, with the ε that is charged where anything is guaranteed."""
    accepted = "" if end.accepted == end.step else f", {end.accepted:,} of them accepted"
    spent = f", {_charged_text(end.epsilon_spent, start)}"
    if end.epsilon_spent == math.inf or (start is not None and start.promises_nothing is not None):
        spent = ""
    return one_line(f"{end.reason}: {end.step:,} steps{accepted}{spent}")


def _charged_text(spent: float, start: Start | None) -> str:
    """A run that ends early is charged for its whole plan."""
    if start is None or start.has_limit or _up(start.epsilon) == _up(spent):
        return f"proven ε {_up(spent)} spent"
    return f"ε {_up(spent)} spent; the proven ε is that of the whole plan, {_up(start.epsilon)}"


def _up(epsilon: float) -> str:
    return f"{rounded_up(epsilon, digits=3):.3g}"


# Several runs one after the other.


class AuditProgress(TrainingProgress):
    """The runs of an audit, in a temporary folder."""

    def __init__(self, subject: str, *, quiet: bool, stream: TextIO | None = None) -> None:
        super().__init__(Screen(stream), quiet=quiet)
        self._subject, self._runs = subject, 0

    def started(self, start: Start) -> None:
        self._runs += 1
        name = f"attacking {self._subject}" + ("" if self._runs == 1 else f" (run {self._runs})")
        super().started(replace(start, method=name, directory=TEMPORARY))


class SimulationProgress(TrainingProgress):
    """Simulated runs. With ``quiet`` nothing is said; why a run failed is in its error."""

    def __init__(self, num_runs: int, *, quiet: bool, stream: TextIO | None = None) -> None:
        super().__init__(Screen(stream), quiet=quiet)
        self._num_runs, self._name = num_runs, ""

    def coming(self, number: int, name: str) -> None:
        """Note which run begins next."""
        self._name = f"run {number} of {self._num_runs}, {name}"

    def passed_over(self, number: int, name: str, *, accuracy: float) -> None:
        """Say that a run was done before."""
        if not self._quiet:
            done = f"done before, accuracy {100 * accuracy:.1f} %"
            self._screen.say(f"run {number} of {self._num_runs}, {name}: {done}")

    def started(self, start: Start) -> None:
        super().started(replace(start, method=self._name))

    def ended(self, end: End) -> None:
        if not self._quiet:
            super().ended(end)


# Searches.

DONE, FAILED, PRUNED, RUNNING = "done", "failed", "pruned", "running"
ACCURACY = "accuracy"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRow:
    """A trial of a search: its settings, and its score where it has one."""

    number: int
    state: str
    score: float | None
    parameters: Mapping[str, bool | int | float | str]
    note: str = ""
    seconds: float | None = None

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "parameters": dict(self.parameters)}


class SearchCallback(Callback):
    """Is called as a search goes on, and as a callback of the training of every trial."""

    def began(self, rows: Sequence[TrialRow], *, trials: int, score: str) -> None:
        """Before the first trial, with those that were done before."""

    def trying(self, number: int, parameters: Mapping[str, object]) -> None:
        """Before a trial."""

    def tried(self, row: TrialRow, rows: Sequence[TrialRow]) -> None:
        """After a trial, with all that there are."""

    def closed(self, rows: Sequence[TrialRow]) -> None:
        """After the last trial, or when the search stops before it."""


class SearchProgress(SearchCallback):
    """A line for every trial; on a terminal also how many are done, the best so far, and the trial that runs."""

    def __init__(self, screen: Screen | None = None) -> None:
        self._screen = screen or Screen()
        self._rows: Sequence[TrialRow] = ()
        self._trials, self._score = 0, ""
        self._running, self._settings, self._at = "", "", ""
        self._steps = 0

    def began(self, rows: Sequence[TrialRow], *, trials: int, score: str) -> None:
        self._rows, self._trials, self._score = rows, trials, score
        done = num_done(rows)
        if not self._screen.is_live:
            self._screen.say(f"{trials - done} trials to do" + (f", {done} done before" if done else ""))
        self._screen.show(self.frame)

    def trying(self, number: int, parameters: Mapping[str, object]) -> None:
        self._running, self._settings, self._at = f"trial {number}", settings_text(parameters), ""

    def started(self, start: Start) -> None:
        self._steps = start.steps

    def stepped(self, progress: Progress) -> None:
        self._at = f"step {progress.step:,} of {self._steps:,}"

    def evaluated(self, evaluation: Evaluation) -> None:
        value = evaluation.accuracy if self._score == ACCURACY else evaluation.loss
        self._at = f"step {evaluation.step:,} of {self._steps:,}, {score_text(value, score=self._score)}"

    def tried(self, row: TrialRow, rows: Sequence[TrialRow]) -> None:
        self._rows, self._running, self._at = rows, "", ""
        reached = "" if row.score is None else f": {score_text(row.score, score=self._score)}"
        state = f"best {best_text(rows, score=self._score)}; {num_done(rows)} of {self._trials} done"
        text = row.note or settings_text(row.parameters)
        self._screen.say(f"trial {row.number} {row.state}{reached} ({state}): {text}")

    def closed(self, rows: Sequence[TrialRow]) -> None:
        self._rows, self._running, self._at = rows, "", ""
        self._screen.close()

    def frame(self) -> Group:
        """What a terminal shows now."""
        done = num_done(self._rows)
        text = f"{done} of {self._trials} trials, best {best_text(self._rows, score=self._score)}"
        bar = self._screen.bar(done, self._trials, text)
        if not self._running:
            return Group(bar)
        running = f"{', '.join(filter(None, (self._running, self._at)))}: {self._settings}"
        return Group(bar, Text(one_line(running), overflow="ellipsis", no_wrap=True))


def best_first(rows: Sequence[TrialRow], *, score: str) -> list[TrialRow]:
    """The best first; those without a score last."""
    sign = -1 if score == ACCURACY else 1
    return sorted(rows, key=lambda row: (row.score is None, sign * (row.score or 0.0), row.number))


def best_of(rows: Sequence[TrialRow], *, score: str) -> TrialRow | None:
    """The best of the trials with a score, the first of equals."""
    return next((row for row in best_first(rows, score=score) if row.score is not None), None)


def best_text(rows: Sequence[TrialRow], *, score: str) -> str:
    found = best_of(rows, score=score)
    return "none yet" if found is None else f"{score_text(found.score, score=score)}, trial {found.number}"


def num_done(rows: Sequence[TrialRow]) -> int:
    """The trials that are over, however they ended."""
    return sum(row.state != RUNNING for row in rows)


def score_text(value: float | None, *, score: str) -> str:
    if value is None:
        return "–"
    return f"{value:.2%}" if score == ACCURACY else f"{value:.4f}"


def setting_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings_text(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {setting_text(value)}" for name, value in parameters.items())
