"""A run in TensorBoard: every evaluation, and the proven ε spent. It needs ``pip install 'lehr[tensorboard]'``."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from lehr.errors import InvalidValue
from lehr.reports.progress import Clock
from lehr.run_shape import Callback, End, Evaluation, Progress, Start

BETWEEN_POINTS = 1.0  # seconds


class TensorBoard(Callback):
    """Writes what is public about a run into ``directory``, for ``tensorboard --logdir`` to show."""

    def __init__(self, directory: str | os.PathLike[str], *, clock: Clock = time.monotonic) -> None:
        self._directory = os.fspath(directory)
        self._make_writer = _writer_class()  # now, so that what is missing is missed before the first step
        self._writer: Any = None
        self._clock = clock
        self._next_point = -math.inf

    def started(self, start: Start) -> None:
        """Open the files; what an interrupted run had written about steps that come again is not shown."""
        self._writer = self._make_writer(self._directory, purge_step=start.first_step or None)

    def stepped(self, progress: Progress) -> None:
        """Write ε, about once a second."""
        if (now := self._clock()) >= self._next_point:
            self._next_point = now + BETWEEN_POINTS
            self._spent(progress)

    def evaluated(self, evaluation: Evaluation) -> None:
        """Write loss, accuracy and learning rate."""
        step = evaluation.step
        self._write(f"loss/{evaluation.on}", evaluation.loss, step)
        self._write(f"accuracy/{evaluation.on}", evaluation.accuracy, step)
        self._write("learning_rate", evaluation.learning_rate, step)
        if evaluation.step:
            self._write("accepted_fraction", evaluation.accepted / step, step)

    def ended(self, end: End) -> None:
        """Write the last ε and close the files."""
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
        raise InvalidValue(
            "tensorboard", allowed="installed where it is used: pip install 'lehr[tensorboard]'", given="not installed"
        ) from error
    return SummaryWriter
