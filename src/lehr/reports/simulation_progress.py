"""How several simulated runs go, on standard error: as training is shown, one after the other, each with its place."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TextIO

from lehr.reports.progress import progress_for
from lehr.run_shape import Callback, End, Evaluation, Progress, Start


class SimulationProgress(Callback):
    """Says which run of how many it is. With ``quiet`` it says nothing; why a run failed is said by the run itself."""

    def __init__(self, num_runs: int, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._num_runs, self._quiet = num_runs, quiet
        self._stream = sys.stderr if stream is None else stream
        self._display = Callback() if quiet else progress_for(self._stream, quiet=False)
        self._name = ""

    def coming(self, number: int, name: str) -> None:
        """Note which run begins next."""
        self._name = f"run {number} of {self._num_runs}, {name}"

    def passed_over(self, number: int, name: str, *, accuracy: float) -> None:
        """Say that a run was done before."""
        if not self._quiet:
            said = f"run {number} of {self._num_runs}, {name}: done before, accuracy {100 * accuracy:.1f} %"
            print(said, file=self._stream, flush=True)

    def started(self, start: Start) -> None:
        """Say which run it is."""
        self._display.started(replace(start, method=self._name))

    def stepped(self, progress: Progress) -> None:
        """Hand it on."""
        self._display.stepped(progress)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Hand it on."""
        self._display.evaluated(evaluation)

    def ended(self, end: End) -> None:
        """Hand it on."""
        self._display.ended(end)
