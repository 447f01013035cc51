"""The numbers behind a chart as a table, for readers who have no eyes for a chart, or want to copy them.

>>> from lehr.reports.page_frame import Chart, Line
>>> line = Line(name="test", x=[10, 20], y=[0.5, 0.75])
>>> chart = Chart(element="a", x_title="steps", y_title="accuracy", x_format=",d", y_format=".0%", point="",
...     has_markers=True, from_zero=False, lines=(line,))
>>> numbers(chart)
Numbers(headings=('Steps', 'Accuracy'), rows=(('10', '50.00%'), ('20', '75.00%')))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lehr.reports.rounding import at_most

if TYPE_CHECKING:
    from lehr.reports.page_frame import Chart

MOST_ROWS = 80  # of one table, all lines together
FEWEST_OF_A_LINE = 3
Item = TypeVar("Item")


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
