"""The private fits of this process: one that follows others on the same records has chosen its settings there.

Nothing of this leaves the process, and what other processes did is not seen; a budget knows of those.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SHARED = 0.1  # of the smaller sketch: more than a few blank or repeated records have in common


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """A fit: a sketch of its records (``lehr.data.records``), its settings, and the budget that pays for it."""

    records: frozenset[bytes]
    settings: object
    budget: Path | None = None


_BEFORE: list[Fit] = []


def note(fit: Fit) -> None:
    """Remember a fit."""
    if fit not in _BEFORE:
        _BEFORE.append(fit)


def is_choice(fit: Fit) -> bool:
    """Whether another fit before had other settings and some of these records, and this fit's budget did not pay it."""
    return any(
        earlier.settings != fit.settings
        and (earlier.budget is None or earlier.budget != fit.budget)
        and len(earlier.records & fit.records) > SHARED * min(len(earlier.records), len(fit.records))
        for earlier in _BEFORE
    )


def forget() -> None:
    """Forget all of them."""
    _BEFORE.clear()
