"""How the jobs of a table go, on standard error: a bar on a terminal, a line for each job elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from lehr.papers.job import Job, Training
from lehr.papers.running import Ended, RunningCallback
from lehr.reports.progress import one_line


def running_progress_for(stream: TextIO) -> RunningCallback:
    """What suits the stream."""
    console = Console(file=stream)
    return RunningBar(console) if stream.isatty() and not console.is_dumb_terminal else RunningLines(stream)


class RunningLines(RunningCallback):
    """A line for the first job that begins, since it may take a while, and for each that is over."""

    def __init__(self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._jobs = self._done = self._failed = self._ended = 0
        self._has_begun = False
        self._begun = clock()

    def began(self, *, jobs: int, done: int) -> None:
        """Say how many there are."""
        self._jobs, self._done, self._begun = jobs, done, self._clock()
        left = jobs - done
        self._say(f"{left} job{'' if left == 1 else 's'} to do" + (f", {done} done before" if done else ""))

    def took(self, job: Job) -> None:
        """Say which is the first."""
        if not self._has_begun:
            self._say(f"{job_words(job)} begun")
        self._has_begun = True

    def ended(self, ended: Ended) -> None:
        """Say what came of it."""
        self._done, self._failed = self._done + (ended.error is None), self._failed + (ended.error is not None)
        self._ended += 1
        seconds, left = self._clock() - self._begun, self._jobs - self._done - self._failed
        counts = f"{self._done} of {self._jobs} done, {self._failed} failed, {seconds:.0f} s"
        counts += time_left(seconds, ended=self._ended, left=left)
        self._say(f"{ended_words(ended)} ({counts})")

    def _say(self, line: str) -> None:
        print(one_line(line), file=sys.stderr if self._stream is None else self._stream, flush=True)


class RunningBar(RunningCallback):
    """How many are done, failed and running, since when, and for how long still; failures stay above it."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._running = self._failed = self._ended = self._left = 0
        self._begun = clock()
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console)
        self._task: TaskID | None = None

    def began(self, *, jobs: int, done: int) -> None:
        """Begin to draw."""
        self._left, self._begun = jobs - done, self._clock()
        self._task = self._bar.add_task("", total=jobs, completed=done)
        self._bar.start()

    def took(self, job: Job) -> None:
        """One more runs."""
        self._running += 1
        self._draw(advance=0)

    def ended(self, ended: Ended) -> None:
        """One fewer runs."""
        self._running, self._ended, self._left = self._running - 1, self._ended + 1, self._left - 1
        if ended.error is not None:
            self._failed += 1
            self._console.print(one_line(ended_words(ended)), markup=False, highlight=False)
        self._draw(advance=ended.error is None)

    def closed(self) -> None:
        """Leave the last picture."""
        self._bar.stop()

    def _draw(self, *, advance: int) -> None:
        if self._task is not None:
            left = time_left(self._clock() - self._begun, ended=self._ended, left=self._left)
            words = f"jobs, {self._running} running, {self._failed} failed{left}"
            self._bar.update(self._task, advance=advance, description=words)


def time_left(seconds: float, *, ended: int, left: int) -> str:
    """How long the jobs that are left take, if they take as long as those that have ended; nothing before one has.

    >>> time_left(600.0, ended=2, left=16)
    ', about 80 min left'
    """
    if not (ended and left):
        return ""
    minutes = math.ceil(seconds / ended * left / 60)
    return f", about {minutes} min left" if minutes < 120 else f", about {minutes / 60:.1f} h left"


def job_words(job: Job) -> str:
    """A job in a few words."""
    if not isinstance(job, Training):
        return f"measurement {job.function}"
    said = [f"{name} {value}" for name, value in job.network[1].items() if isinstance(value, str)]
    rate = [f"rate {job.settings['learning_rate']:g}"] if "learning_rate" in job.settings else []
    batch = job.expected_batch_size if job.simulated_batch_size is None else job.simulated_batch_size
    return ", ".join([f"{job.method} on {job.data}", job.network[0], *said, *rate, f"batch {batch:g}, seed {job.seed}"])


def ended_words(ended: Ended) -> str:
    """How it ended, in a line."""
    if ended.error is not None:
        return f"{job_words(ended.job)} failed: {ended.error}"
    reached = "" if ended.accuracy is None else f": accuracy {ended.accuracy:.2%}"
    return f"{job_words(ended.job)} done in {ended.seconds:.0f} s{reached}"
