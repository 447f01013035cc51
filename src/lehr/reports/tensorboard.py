"""A run in TensorBoard: every evaluation, and the proven ε spent. It needs ``pip install 'lehr[tensorboard]'``."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from lehr.errors import MissingExtra
from lehr.reports.progress import Clock
from lehr.run.shape import Callback, End, Evaluation, Progress, Start

BETWEEN_POINTS = 1.0  # seconds


class TensorBoard(Callback):
    """Writes what is public about a run into ``directory``, for ``tensorboard --logdir`` to show."""

    def __init__(self, directory: str | os.PathLike[str], *, clock: Clock = time.monotonic) -> None:
        self._directory = os.fspath(directory)
        self._make_writer = _writer_class()  # now, so that a missing package is an error before the first step
        self._writer: Any = None
        self._clock = clock
        self._next_point = -math.inf

    def started(self, start: Start) -> None:
        # TensorBoard discards what an interrupted run wrote about steps that are repeated
        self._writer = self._make_writer(self._directory, purge_step=start.first_step or None)

    def stepped(self, progress: Progress) -> None:
        if (now := self._clock()) >= self._next_point:
            self._next_point = now + BETWEEN_POINTS
            self._spent(progress)

    def evaluated(self, evaluation: Evaluation) -> None:
        step = evaluation.step
        self._write(f"loss/{evaluation.on}", evaluation.loss, step)
        self._write(f"accuracy/{evaluation.on}", evaluation.accuracy, step)
        self._write("learning_rate", evaluation.learning_rate, step)
        if evaluation.step:
            self._write("accepted_fraction", evaluation.accepted / step, step)

    def ended(self, end: End) -> None:
        self._spent(Progress(step=end.step, accepted=end.accepted, epsilon_spent=end.epsilon_spent))
        if self._writer is not None:
            self._writer.close()

    def _spent(self, progress: Progress) -> None:
        if math.isfinite(progress.epsilon_spent):
            self._write("epsilon/proven", progress.epsilon_spent, progress.step)

    def _write(self, name: str, value: float, step: int) -> None:
        if self._writer is not None:
            self._writer.add_scalar(name, value, step)


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", extra="tensorboard") from error
    return SummaryWriter
