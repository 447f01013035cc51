"""A chart as plain values, and its numbers as a table, for readers who have no eyes for a chart, or want to copy them.

>>> line = Line(name="test", x=[10, 20], y=[0.5, 0.75])
>>> chart = Chart(element="a", x_title="steps", y_title="accuracy", x_format=",d", y_format=".0%", point="",
...     has_markers=True, from_zero=False, lines=(line,))
>>> numbers(chart)
Numbers(headings=('Steps', 'Accuracy'), rows=(('10', '50.00%'), ('20', '75.00%')))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from lehr.reports.rounding import at_most

MOST_ROWS = 80  # of one table, all lines together
FEWEST_OF_A_LINE = 3
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a chart. A number that is not finite is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dash: str = "solid"  # or "dot", or "dash" for what is there to compare with
    is_mark: bool = False  # single points that stand out, such as a reader's own setting
    is_scattered: bool = False  # points that no line goes through
    is_bars: bool = False  # a bar for each point
    is_area: bool = False  # the inside of a closed line, such as all that is likely
    colour: int | None = None  # which of the page's colours; otherwise by its place among the lines
    notes: Sequence[str] = ()  # a text for each point, for a chart whose ``point`` asks for "%{text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart: the element that it is drawn in, its axes, what a point says, and its lines."""

    element: str
    x_title: str
    y_title: str
    x_format: str
    y_format: str
    point: str  # in plotly's words, such as "ε ≤ %{y:.4g}"
    has_markers: bool
    from_zero: bool
    lines: tuple[Line, ...]
    x_scale: str = "linear"  # or "log"
    y_scale: str = "linear"
    x_ticks: tuple[float, ...] = ()  # where numbers stand below the chart; otherwise where plotly puts them
    y_ticks: tuple[float, ...] = ()
    names_lines: bool = False  # also where there is only one, which is one of many elsewhere on the page


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart with a title and what it shows."""

    title: str
    chart: Chart
    note: str = ""


class Numbers(NamedTuple):
    """A table: the line that a row is of, where there are several, and its two numbers."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def numbers(chart: Chart) -> Numbers:
    """The points of all lines, evenly thinned out where they are many. An ε is rounded up, as a bound must be."""
    lines = [line for line in chart.lines if not line.is_area]
    most = max(FEWEST_OF_A_LINE, MOST_ROWS // max(1, len(lines)))
    named = len(lines) > 1
    return Numbers(
        headings=(*(("Line",) if named else ()), _capitalised(chart.x_title), _capitalised(chart.y_title)),
        rows=tuple(
            (*((line.name,) if named else ()), *pair)
            for line in lines
            for pair in _pairs(chart, thinned([*zip(line.x, line.y, strict=True)], most=most))
        ),
    )


def thinned(items: Sequence[Item], *, most: int) -> list[Item]:
    """At most so many of them, evenly spread, the first and the last among them.

    >>> thinned([1, 2, 3, 4, 5, 6, 7], most=3)
    [1, 4, 7]
    """
    if len(items) <= most:
        return [*items]
    places = sorted({round(place * (len(items) - 1) / (most - 1)) for place in range(most)})
    return [items[place] for place in places]


def _pairs(chart: Chart, points: Sequence[tuple[float, float]]) -> Iterator[tuple[str, str]]:
    for x, y in points:
        yield _words(x, chart.x_title, chart.x_format), _words(y, chart.y_title, chart.y_format)


def _words(value: float, title: str, form: str) -> str:
    if not math.isfinite(value):
        return "–"
    if title.startswith("ε"):
        return at_most(value)
    if form.endswith("%"):
        return f"{value:.2%}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.5g}"


def _capitalised(title: str) -> str:
    return title[:1].upper() + title[1:] if title[:1].isascii() else title  # an upper ε would be no ε
