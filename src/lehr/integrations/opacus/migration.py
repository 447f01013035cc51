"""What differs from Opacus: notes and warnings for a migrated loop, and names that exist only to say what to use.

``lehr.integrations.opacus.distributed`` and ``.lightning`` are this module.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from lehr.errors import InvalidValue

USE_TORCHRUN = "lehr.fit under torchrun, which trains on several processes"
_LOG = logging.getLogger("lehr.integrations.opacus")


class UnprovenWarning(UserWarning):
    """The ε that is shown is not a guarantee."""


class Notes(list[str]):
    """How this engine differs from Opacus, each note once. They are logged at INFO as ``lehr.integrations.opacus``.

    ``unproven`` lists why ε is not proven; it is empty where it is.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unproven: list[str] = []

    def add(self, note: str) -> None:
        """Keep the note, and log it the first time."""
        if note not in self:
            self.append(note)
            _LOG.info(note)

    def warn(self, note: str) -> None:
        """Keep the note, and warn of what the user has to make sure of."""
        self.add(note)
        warnings.warn(note, UserWarning, stacklevel=_depth())

    def mark_unproven(self, reason: str) -> None:
        """From here on no ε of this engine is a guarantee."""
        if reason not in self.unproven:
            self.unproven.append(reason)
        warn_unproven(reason)


def warn_unproven(reason: str) -> None:
    """Warn at the user's line."""
    warnings.warn(f"this is not a guarantee: {reason}", UnprovenWarning, stacklevel=_depth())


def _depth() -> int:
    """The stack level of the first caller outside this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lehr.integrations.opacus"):
        frame, level = frame.f_back, level + 1
    return level


def _unsupported(name: str, *, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise InvalidValue(name, allowed=f"replaced by {instead}", given=name)

    return refuse


average_gradients = _unsupported("average_gradients", instead=USE_TORCHRUN)
DifferentiallyPrivateDistributedDataParallel = _unsupported("module", instead=USE_TORCHRUN)
DPLightningDataModule = _unsupported("datamodule", instead="the callback of lehr.integrations.lightning")
