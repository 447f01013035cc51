"""Schedules of ``max_grad_norm``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from lehr.compat.opacus.schedulers.schedule import ByFunction, Exponential, Stepped


class ExponentialGradClip(Exponential):
    """The clip norm times ``gamma`` at every step."""

    attribute: ClassVar[str] = "max_grad_norm"


class StepGradClip(Stepped):
    """The clip norm times ``gamma`` at every ``step_size``-th step."""

    attribute: ClassVar[str] = "max_grad_norm"


class LambdaGradClip(ByFunction):
    """The clip norm at the start times ``scheduler_function`` of the step."""

    attribute: ClassVar[str] = "max_grad_norm"

    def __init__(self, optimizer: Any, *, scheduler_function: Callable[[int], float], last_epoch: int = -1) -> None:
        super().__init__(optimizer, function=scheduler_function, last_epoch=last_epoch)
