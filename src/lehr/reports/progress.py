"""Progress on standard error: of training, audits, simulations and searches. One display for all of them.

On a terminal a bar and a line stay in place; elsewhere there are plain lines. Rates use the expected batch: how many
records a step really drew is private.
"""

from __future__ import annotations

import atexit
import math
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from lehr.rounding import exactly, rounded_up
from lehr.run.shape import COMPLETED, INTERRUPTED, SPENT, Callback, End, Evaluation, Progress, Start

BETWEEN_LINES = 10.0  # seconds

Clock = Callable[[], float]


class _Bar(RichProgress):
    """A progress bar with a line of text below it."""

    text = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(one_line(self.text), overflow="ellipsis", no_wrap=True)


class Screen:
    """Where progress is shown: a bar that stays in place if the stream is a terminal, plain lines otherwise."""

    def __init__(self, stream: TextIO | None = None, *, clock: Clock = time.monotonic) -> None:
        self._console = Console(file=stream, stderr=stream is None, highlight=False)
        self.is_live = self._console.is_interactive and self._console.file.isatty()  # FORCE_COLOR makes no terminal
        self.clock = clock
        self._bar: _Bar | None = None

    def say(self, line: str) -> None:
        """Print a line, above the bar."""
        self._console.print(Text(one_line(line)), soft_wrap=True)

    def begin(self, total: int, *, done: int, unit: str) -> None:
        """Show a bar until ``close``; only on a terminal, but the rate is measured everywhere."""
        self.close()
        self._bar = _Bar(
            # rich's own green is grey on a terminal with sixteen colours, like a bar that has not begun
            BarColumn(finished_style="green"),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
            TimeRemainingColumn(),
            console=self._console,
            refresh_per_second=4,
            redirect_stdout=sys.stdout.isatty(),  # output that goes to a file continues to go there
            get_time=self.clock,
            disable=not self.is_live,
        )
        self._bar.add_task("", total=total, completed=done)
        self._bar.start()
        atexit.register(self.close)  # otherwise the cursor stays hidden if the program ends early

    def update(self, done: int, text: str) -> None:
        """Move the bar, and replace the text below it."""
        if self._bar is not None:
            self._bar.text = text
            self._bar.update(self._bar.task_ids[0], completed=done)

    @property
    def rate(self) -> float | None:
        """Units a second, lately; the first one, which may compile for a minute, is left out."""
        return self._bar.tasks[0].speed if self._bar is not None else None

    def close(self) -> None:
        """Draw once more and stop."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()
            atexit.unregister(self.close)


def one_line(text: str) -> str:
    """The text without control characters, which could move the cursor or change colours."""
    return "".join(mark if mark.isprintable() else " " for mark in text)


# Training.


class TrainingProgress(Callback):
    """Steps, ε, scores, rate and time left. Without a terminal: a line per evaluation, and one every ten seconds.

    With ``quiet`` it only says why a run ended before its plan did. A ``label`` replaces method and folder.
    """

    def __init__(self, screen: Screen | None = None, *, quiet: bool = False, label: str = "") -> None:
        self._screen, self.quiet, self.label = screen or Screen(), quiet, label
        self._start: Start | None = None
        self._evaluation: Evaluation | None = None
        self._next_line = 0.0

    def started(self, start: Start) -> None:
        self._start, self._evaluation = start, None
        if not self.quiet:
            self.say(start_text(start, label=self.label))
            self._screen.begin(start.steps, done=start.first_step, unit="steps")

    def stepped(self, progress: Progress) -> None:
        self._show(progress, is_due=self._screen.clock() >= self._next_line)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._evaluation, spent = evaluation, evaluation.epsilon_spent
        self._show(Progress(step=evaluation.step, accepted=evaluation.accepted, epsilon_spent=spent), is_due=True)

    def ended(self, end: End) -> None:
        self._screen.close()
        enough = None if self._start is None else self._start.stops_at_accepted
        is_planned = end.reason in (COMPLETED, SPENT) or (enough is not None and end.accepted >= enough)
        if not (self.quiet and is_planned):
            self.say(end_text(end, self._start))
        if end.reason == INTERRUPTED and self._start is not None and not self.label:
            folder = self._start.directory
            self.say(f"report: {folder / 'report.html'}")
            command = f"lehr train --resume {shlex.quote(str(folder))}"
            launcher = f"torchrun --standalone --nproc-per-node {self._start.ranks} --no-python -- "
            self.say(f"continue with: {launcher if self._start.ranks > 1 else ''}{command}")
            self.say(f"or the same lehr.fit call with directory={str(folder)!r}, resume=True")

    def say(self, line: str) -> None:
        """Print a line; the next one on progress is due ten seconds later."""
        self._next_line = self._screen.clock() + BETWEEN_LINES
        self._screen.say(line)

    def _show(self, progress: Progress, *, is_due: bool) -> None:
        start = self._start
        if start is None or self.quiet:
            return
        self._screen.update(progress.step, "  ".join(self._facts(start, progress)) if self._screen.is_live else "")
        if is_due and not self._screen.is_live:
            planned = "" if start.has_limit else f" of {start.steps:,}"
            self.say(", ".join([f"step {progress.step:,}{planned}", *self._facts(start, progress)]))

    def _facts(self, start: Start, progress: Progress) -> list[str]:
        """What is known. All of it is public."""
        of, evaluation = start.epsilon if start.promises_nothing is None else math.inf, self._evaluation
        facts = ["no privacy" if of == math.inf else f"ε {_up(progress.epsilon_spent)} of {_up(of)}"]
        if evaluation is not None:
            facts.append(f"loss {evaluation.loss:.4f}")
            facts += [f"{name} {value:.4g}" for name, value in (evaluation.metrics or {}).items() if value is not None]
            accuracy = "" if evaluation.accuracy is None else f"accuracy {100 * evaluation.accuracy:.1f} % "
            facts.append(f"{accuracy}on {evaluation.on}")
        if progress.accepted < progress.step:
            facts.append(f"{progress.accepted:,} of {progress.step:,} candidates accepted")
        if rate := self._screen.rate:
            facts.append(f"{rate * start.expected_batch_size:,.0f} expected records/s")
        return facts


def start_text(start: Start, *, label: str = "") -> str:
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
    where = "" if label else f", in {start.directory}"
    return f"{label or start.method}: {steps}, {promise}{since}{where}"


def end_text(end: End, start: Start | None = None) -> str:
    """How a run ended, in a line, with the ε that is charged where anything is guaranteed."""
    accepted = "" if end.accepted == end.step else f", {end.accepted:,} of them accepted"
    spent = f", proven ε {_up(end.epsilon_spent)} spent"
    if end.epsilon_spent == math.inf or (start is not None and start.promises_nothing is not None):
        spent = ""
    elif start is not None and not start.has_limit and _up(start.epsilon) != _up(end.epsilon_spent):
        # a run that ends early is charged for its whole plan
        spent = f", ε {_up(end.epsilon_spent)} spent; the proven ε is that of the whole plan, {_up(start.epsilon)}"
    return f"{end.reason}: {end.step:,} steps{accepted}{spent}"


def _up(epsilon: float) -> str:
    return f"{rounded_up(epsilon, digits=3):.3g}"


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
        self._trials = self._steps = 0
        self._score = self._running = ""

    def began(self, rows: Sequence[TrialRow], *, trials: int, score: str) -> None:
        self._rows, self._trials, self._score = rows, trials, score
        done = _num_done(rows)
        self._screen.say(f"{trials - done} trials to do" + (f", {done} done before" if done else ""))
        self._screen.begin(trials, done=done, unit="trials")

    def trying(self, number: int, parameters: Mapping[str, object]) -> None:
        self._running = f"trial {number}: {settings_text(parameters)}"
        self._show("")

    def started(self, start: Start) -> None:
        self._steps = start.steps

    def stepped(self, progress: Progress) -> None:
        self._show(f"step {progress.step:,} of {self._steps:,}")

    def evaluated(self, evaluation: Evaluation) -> None:
        value = evaluation.accuracy if self._score == ACCURACY else evaluation.loss
        self._show(f"step {evaluation.step:,} of {self._steps:,}, {score_text(value, score=self._score)}")

    def tried(self, row: TrialRow, rows: Sequence[TrialRow]) -> None:
        self._rows, self._running = rows, ""
        reached = "" if row.score is None else f": {score_text(row.score, score=self._score)}"
        state = f"{self._best()}; {_num_done(rows)} of {self._trials} done"
        self._screen.say(
            f"trial {row.number} {row.state}{reached} ({state}): {row.note or settings_text(row.parameters)}"
        )
        self._show("")

    def closed(self, rows: Sequence[TrialRow]) -> None:
        self._screen.close()

    def _best(self) -> str:
        best = best_of(self._rows, score=self._score)
        if best is None:
            return "no score yet"
        return f"best {score_text(best.score, score=self._score)}, trial {best.number}"

    def _show(self, at: str) -> None:
        self._screen.update(_num_done(self._rows), "  ".join(filter(None, (self._best(), self._running, at))))


def best_first(rows: Sequence[TrialRow], *, score: str) -> list[TrialRow]:
    """The best first; those without a score last."""
    sign = -1 if score == ACCURACY else 1
    return sorted(rows, key=lambda row: (row.score is None, sign * (row.score or 0.0), row.number))


def best_of(rows: Sequence[TrialRow], *, score: str) -> TrialRow | None:
    """The best of the trials with a score, the first of equals."""
    return next((row for row in best_first(rows, score=score) if row.score is not None), None)


def _num_done(rows: Sequence[TrialRow]) -> int:
    return sum(row.state != RUNNING for row in rows)


def score_text(value: float | None, *, score: str) -> str:
    if value is None:
        return "–"
    return f"{value:.2%}" if score == ACCURACY else f"{value:.4f}"


def setting_text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def settings_text(parameters: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {setting_text(value)}" for name, value in parameters.items())
