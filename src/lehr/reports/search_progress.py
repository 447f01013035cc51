"""How a search goes, on standard error: two lines that stay in their place on a terminal, plain lines elsewhere.

>>> import io
>>> lines = SearchLines(stream := io.StringIO())
>>> lines.began([], trials=2, score="accuracy")
>>> first = Row(number=0, state="done", score=0.5, parameters={"momentum": 0.9}, seconds=3.2)
>>> lines.tried(first, [first])
>>> print(stream.getvalue(), end="")
2 trials to do
trial 0 done: 50.00% (best 50.00%, trial 0; 1 of 2 done): momentum 0.9
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lehr.reports.progress import FRAMES_PER_SECOND, WIDEST_BAR, one_line
from lehr.reports.search_rows import RUNNING, Row, SearchCallback, best_of, score_in_words, setting_in_words
from lehr.run_shape import Evaluation, Progress, Start


def search_progress_for(stream: TextIO) -> SearchCallback:
    """What suits the stream."""
    console = Console(file=stream)
    return SearchDisplay(console) if stream.isatty() and not console.is_dumb_terminal else SearchLines(stream)


class SearchLines(SearchCallback):
    """A line for every trial."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._trials, self._score = 0, ""

    def began(self, rows: Sequence[Row], *, trials: int, score: str) -> None:
        """Say how many trials there are."""
        self._trials, self._score = trials, score
        done = num_done(rows)
        self._say(f"{trials - done} trials to do" + (f", {done} done before" if done else ""))

    def tried(self, row: Row, rows: Sequence[Row]) -> None:
        """Say what came of it."""
        self._say(told(row, rows, trials=self._trials, score=self._score))

    def _say(self, line: str) -> None:
        print(one_line(line), file=sys.stderr if self._stream is None else self._stream, flush=True)


class SearchDisplay(SearchCallback):
    """How many trials are done, the best so far, and how far the one is that runs."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._live: Live | None = None
        self._rows: Sequence[Row] = ()
        self._trials, self._score = 0, ""
        self._running, self._settings, self._at = "", "", ""
        self._steps = 0

    def began(self, rows: Sequence[Row], *, trials: int, score: str) -> None:
        """Begin to draw."""
        self._rows, self._trials, self._score = rows, trials, score
        self._live = Live(
            get_renderable=self.drawn,
            console=self._console,
            refresh_per_second=FRAMES_PER_SECOND,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)
        atexit.register(self._close)  # a hidden cursor would outlive a search that ends without a word

    def trying(self, number: int, parameters: Mapping[str, object]) -> None:
        """Note which trial runs."""
        self._running, self._settings, self._at = f"trial {number}", settings(parameters), ""

    def started(self, start: Start) -> None:
        """Note how many steps its run has."""
        self._steps = start.steps

    def stepped(self, progress: Progress) -> None:
        """Note where its run stands."""
        self._at = f"step {progress.step:,} of {self._steps:,}"

    def evaluated(self, evaluation: Evaluation) -> None:
        """Note its last score."""
        value = evaluation.accuracy if self._score == "accuracy" else evaluation.loss
        self._at = f"step {evaluation.step:,} of {self._steps:,}, {score_in_words(value, score=self._score)}"

    def tried(self, row: Row, rows: Sequence[Row]) -> None:
        """Leave a line for the trial above the display."""
        self._rows, self._running, self._at = rows, "", ""
        self._console.print(Text(one_line(told(row, rows, trials=self._trials, score=self._score))))

    def closed(self, rows: Sequence[Row]) -> None:
        """Draw once more."""
        self._rows, self._running, self._at = rows, "", ""
        self._close()

    def drawn(self) -> Group:
        """One frame."""
        done, width = num_done(self._rows), min(WIDEST_BAR, self._console.width // 3)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self._trials, completed=done, width=width, finished_style="green"),
            Text(f"{done} of {self._trials} trials, best {best(self._rows, score=self._score)}"),
        )
        if not self._running:
            return Group(bar)
        running = f"{', '.join(filter(None, (self._running, self._at)))}: {self._settings}"
        return Group(bar, Text(one_line(running), overflow="ellipsis", no_wrap=True))

    def _close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            atexit.unregister(self._close)


def num_done(rows: Sequence[Row]) -> int:
    """The trials that are over, however they ended."""
    return sum(row.state != RUNNING for row in rows)


def told(row: Row, rows: Sequence[Row], *, trials: int, score: str) -> str:
    """A trial in a line."""
    reached = "" if row.score is None else f": {score_in_words(row.score, score=score)}"
    stands = f"best {best(rows, score=score)}; {num_done(rows)} of {trials} done"
    return f"trial {row.number} {row.state}{reached} ({stands}): {row.note or settings(row.parameters)}"


def best(rows: Sequence[Row], *, score: str) -> str:
    """The best so far, in words."""
    found = best_of(rows, score=score)
    return "none yet" if found is None else f"{score_in_words(found.score, score=score)}, trial {found.number}"


def settings(parameters: Mapping[str, object]) -> str:
    """Settings in a line."""
    return ", ".join(f"{name} {setting_in_words(value)}" for name, value in parameters.items())
