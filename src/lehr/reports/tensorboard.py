"""A run in TensorBoard: every evaluation, and the proven ε spent. It needs ``pip install 'lehr[tensorboard]'``."""

from __future__ import annotations

import math
import os
from typing import Any

from lehr.errors import MissingExtra
from lehr.run.shape import Callback, End, Evaluation, Progress, Start


class TensorBoard(Callback):
    """Writes what is public about a run into ``directory``, for ``tensorboard --logdir`` to show."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:  # now, so that a missing package is an error before the first step
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("tensorboard", extra="tensorboard") from error
        self._directory, self._make_writer = os.fspath(directory), SummaryWriter
        self._writer: Any = None

    def started(self, start: Start) -> None:
        # TensorBoard discards what an interrupted run wrote about steps that are repeated
        self._writer = self._make_writer(self._directory, purge_step=start.first_step or None)

    def stepped(self, progress: Progress) -> None:
        if math.isfinite(progress.epsilon_spent):
            self._writer.add_scalar("epsilon/proven", progress.epsilon_spent, progress.step)

    def evaluated(self, evaluation: Evaluation) -> None:
        values = {
            f"loss/{evaluation.on}": evaluation.loss,
            f"accuracy/{evaluation.on}": evaluation.accuracy,
            "learning_rate": evaluation.learning_rate,
            **{f"{name}/{evaluation.on}": value for name, value in (evaluation.metrics or {}).items()},
        }
        if evaluation.step:
            values["accepted_fraction"] = evaluation.accepted / evaluation.step
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, evaluation.step)

    def ended(self, end: End) -> None:
        if self._writer is not None:
            self._writer.close()
