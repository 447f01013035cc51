"""How the runs of a game go, on standard error: as training is shown, several of them one after the other."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from lehr.reports.progress import progress_for
from lehr.run_shape import Callback, End, Evaluation, Progress, Start

NOWHERE = Path("a folder that is thrown away")


class GameProgress(Callback):
    """Says which run of the game it is, and not where: the folder of a game is thrown away with it."""

    def __init__(self, subject: str, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._subject = subject
        self._display = progress_for(sys.stderr if stream is None else stream, quiet=quiet)
        self._runs = 0

    def started(self, start: Start) -> None:
        """Say which run it is."""
        self._runs += 1
        number = "" if self._runs == 1 else f" (run {self._runs} of the game)"
        self._display.started(replace(start, method=f"attacking {self._subject}{number}", directory=NOWHERE))

    def stepped(self, progress: Progress) -> None:
        """Hand it on."""
        self._display.stepped(progress)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Hand it on."""
        self._display.evaluated(evaluation)

    def ended(self, end: End) -> None:
        """Hand it on."""
        self._display.ended(end)
