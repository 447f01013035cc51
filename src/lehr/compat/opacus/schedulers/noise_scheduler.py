"""Schedules of ``noise_multiplier``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from lehr.compat.opacus.schedulers.schedule import ByFunction, Exponential, Stepped


class ExponentialNoise(Exponential):
    """The noise multiplier times ``gamma`` at every step."""

    attribute: ClassVar[str] = "noise_multiplier"


class StepNoise(Stepped):
    """The noise multiplier times ``gamma`` at every ``step_size``-th step."""

    attribute: ClassVar[str] = "noise_multiplier"


class LambdaNoise(ByFunction):
    """The noise multiplier at the start times ``noise_lambda`` of the step."""

    attribute: ClassVar[str] = "noise_multiplier"

    def __init__(self, optimizer: Any, *, noise_lambda: Callable[[int], float], last_epoch: int = -1) -> None:
        super().__init__(optimizer, function=noise_lambda, last_epoch=last_epoch)
