"""One trial: a run in a folder of its own, scored by its last evaluation.

A run that diverges, or that cannot be made of its settings, has the worst score that there is and a note that says why:
the search learns from it and goes on. What is wrong with the machine or the files, and not with the settings, stops the
search, which can go on later.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lehr.configuration import Configuration
from lehr.errors import AccountantFailed, Diverged, InvalidValue, NotPrivate, Unreachable, UnsupportedEvent
from lehr.files import lines_file
from lehr.run_shape import Callback, Evaluation, Progress, RunFiles, Start
from lehr.search.asked import ACCURACY

BAD_SETTINGS = (InvalidValue, NotPrivate, Unreachable, UnsupportedEvent, AccountantFailed)


class Pruned(Exception):
    """The run does so badly that the rest of it is not worth its time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trial ended. Its note says why it has the worst score, where it was not scored."""

    score: float
    note: str = ""
    is_pruned: bool = False


def worst(score: str) -> float:
    """What a run that failed is worth."""
    return 0.0 if score == ACCURACY else math.inf


def tried(
    configuration: Configuration,
    directory: Path,
    *,
    score: str,
    callbacks: Sequence[Callback] = (),
    how: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train in this folder, from wherever its run stands, and say how that ended."""
    is_resumed = began(directory)
    if not is_resumed and directory.exists():
        shutil.rmtree(directory)  # the process died while the folder was made: no run began in it
    try:
        run = configuration.train(
            directory=directory, resume=is_resumed, callbacks=callbacks, silent=True, **(how or {})
        )
    except Pruned:
        return Outcome(score=math.nan, is_pruned=True)
    except Diverged as error:
        return Outcome(score=worst(score), note=str(error))
    except torch.OutOfMemoryError:
        return Outcome(score=worst(score), note="does not fit into the memory of the device")
    except BAD_SETTINGS as error:
        if is_resumed or began(directory):  # settings that began are good: it is something else that is wrong
            raise
        return Outcome(score=worst(score), note=str(error))
    return Outcome(score=float(getattr(run.evaluations[-1], score)))


def began(directory: Path) -> bool:
    """Whether a run began in this folder, so that it can go on."""
    return RunFiles(directory).config.exists()


class Watched(Callback):
    """Reports every evaluation of a run, and stops it where it is said not to be worth more."""

    def __init__(
        self,
        directory: Path,
        *,
        score: str,
        report: Callable[[float, int], None],
        is_hopeless: Callable[[], bool],
        alive: Callable[[], None],
    ) -> None:
        self._metrics = RunFiles(directory).metrics
        self._score, self._report, self._is_hopeless, self._alive = score, report, is_hopeless, alive
        self._steps = math.inf

    def started(self, start: Start) -> None:
        """Note when the run will be over."""
        self._steps = start.steps
        self._alive()

    def stepped(self, progress: Progress) -> None:
        """Say that it is alive."""
        self._alive()

    def evaluated(self, evaluation: Evaluation) -> None:
        """Report the score under the number of the evaluation, which means the same in runs of any length."""
        self._alive()
        self._report(getattr(evaluation, self._score), len(lines_file.read(self._metrics)))
        if evaluation.step < self._steps and self._is_hopeless():
            raise Pruned
