"""A run in an experiment tracker: every evaluation, and the proven ε spent.

fit(..., callbacks=[LogMetrics(wandb.log)])               # Weights & Biases
fit(..., callbacks=[LogMetrics(mlflow.log_metrics)])      # MLflow
fit(..., callbacks=[TensorBoard("board")])                # pip install 'lehr[tensorboard]'
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from lehr import validate
from lehr.errors import MissingExtra
from lehr.run.shape import Callback, End, Evaluation, Progress, Start


class LogMetrics(Callback):
    """Passes what is public about a run to ``log(values, step)``, such as ``wandb.log`` or ``mlflow.log_metrics``.

    ε is logged at every ``every``-th step. Values that are not finite are left out.
    """

    def __init__(self, log: Callable[[dict[str, float], int], object], *, every: int = 1) -> None:
        self._log, self._every = log, validate.count(every=every)

    def stepped(self, progress: Progress) -> None:
        if progress.step % self._every == 0:
            self._log_finite({"epsilon/proven": progress.epsilon_spent}, progress.step)

    def evaluated(self, evaluation: Evaluation) -> None:
        on = evaluation.on.partition(",")[0]  # trackers allow no "±" in names
        values: dict[str, float | None] = {
            f"loss/{on}": evaluation.loss,
            f"accuracy/{on}": evaluation.accuracy,
            "learning_rate": evaluation.learning_rate,
            **{f"{name}/{on}": value for name, value in (evaluation.metrics or {}).items()},
        }
        if evaluation.step:
            values["accepted_fraction"] = evaluation.accepted / evaluation.step
        self._log_finite(values, evaluation.step)

    def _log_finite(self, values: dict[str, float | None], step: int) -> None:
        finite = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        if finite:
            self._log(finite, step)


class TensorBoard(LogMetrics):
    """Writes what is public about a run into ``directory``, for ``tensorboard --logdir`` to show."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:  # now, so that a missing package is an error before the first step
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("tensorboard", extra="tensorboard") from error
        super().__init__(self._add)
        self._directory, self._make_writer = os.fspath(directory), SummaryWriter
        self._writer: Any = None

    def started(self, start: Start) -> None:
        # TensorBoard discards what an interrupted run wrote about steps that are repeated
        self._writer = self._make_writer(self._directory, purge_step=start.first_step or None)

    def ended(self, end: End) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
