"""What an experiment shows: tables and charts as plain values, which a terminal, a page of text or a web page can draw.

A number of a paper stands beside ours, a published ε beside a proven one, and what differs is said in words.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lehr.reports.chart import Chart


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean over runs. Nothing where no run was made yet; a spread where there are two or more."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation between runs."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


# What a cell may be: words, one number, a mean over runs, or nothing ("–").
Cell = str | float | int | Measured | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column and how its numbers are written."""

    title: str
    kind: str = "text"  # "percent" (of shares in [0, 1]), "epsilon" (proven, rounded up), "number", "count"
    digits: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table with its title; each row has as many cells as there are columns. ``notes`` stand below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """All that an experiment shows, and how much of it is there: jobs done, of those that it has."""

    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()


def measured(values: Sequence[float | None]) -> Measured:
    """A mean over those that are there."""
    return Measured(tuple(value for value in values if value is not None))
