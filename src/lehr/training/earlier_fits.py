"""The private fits of this process. Settings that differ from an earlier fit on the same records were chosen on them.

This is only kept in memory. Fits of other processes are not seen; a budget records those.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SHARED = 0.1  # fraction of the smaller sketch; data sets share fewer blank or repeated records than this


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A fit: a sketch of its records (``lehr.data.records``), its settings, and its budget."""

    records: frozenset[bytes]
    settings: object
    budget: Path | None = None


_BEFORE: list[Fit] = []


def note(fit: Fit) -> None:
    """Remember a fit."""
    if fit not in _BEFORE:
        _BEFORE.append(fit)


def is_choice(fit: Fit) -> bool:
    """Whether an earlier fit had some of these records and other settings, and was not paid by this fit's budget."""
    return any(
        earlier.settings != fit.settings
        and (earlier.budget is None or earlier.budget != fit.budget)
        and len(earlier.records & fit.records) > SHARED * min(len(earlier.records), len(fit.records))
        for earlier in _BEFORE
    )


def forget() -> None:
    """Forget all fits."""
    _BEFORE.clear()
