"""What a migrated loop should know: notes on what is done otherwise, and warnings where nothing is proven."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator

_LOG = logging.getLogger("lehr.compat.opacus")


class UnprovenWarning(UserWarning):
    """A setting under which the number that is shown is not a guarantee."""


class Notes:
    """Notes of one engine, each once. They are logged at the level INFO under ``lehr.compat.opacus``."""

    def __init__(self) -> None:
        self._notes: dict[str, None] = {}
        self._unproven: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._notes)

    def __len__(self) -> int:
        return len(self._notes)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Why what is shown is not proven; nothing where it is."""
        return tuple(self._unproven)

    def add(self, note: str) -> None:
        """Keep the note, and log it the first time."""
        if note not in self._notes:
            self._notes[note] = None
            _LOG.info(note)

    def caution(self, note: str) -> None:
        """Keep the note, and warn of what the loop has to see to itself."""
        self.add(note)
        warnings.warn(note, UserWarning, stacklevel=_depth())

    def break_proof(self, reason: str) -> None:
        """From here on nothing that is counted is a guarantee, and this is why."""
        self._unproven[reason] = None
        warn_unproven(reason)


def warn_unproven(reason: str) -> None:
    """Warn at the line of the user."""
    warnings.warn(f"this is not a guarantee: {reason}", UnprovenWarning, stacklevel=_depth())


def _depth() -> int:
    """How far up the first caller outside this package is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lehr.compat.opacus"):
        frame, level = frame.f_back, level + 1
    return level
