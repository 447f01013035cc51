"""A chart as plain values: drawn by a web page, by a terminal, or written out as a table of numbers.

>>> line = Line(name="test", x=[10, 20], y=[0.5, 0.75])
>>> numbers(Chart(element="a", x_title="steps", y_title="accuracy", y_format=".0%", lines=(line,)))
Numbers(headings=('Steps', 'Accuracy'), rows=(('10', '50.00%'), ('20', '75.00%')))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple, TypeVar

from lehr.rounding import at_most

MOST_ROWS = 80  # of one table of numbers, all lines together
FEWEST_OF_A_LINE = 3
HEIGHT = 16  # lines of a terminal
NARROWEST, WIDEST = 40, 110
MARK = "●"

_POINTS_BETWEEN = 60  # drawn between two points of a logarithmic line, since plotext joins distant points roughly

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a chart. A number that is not finite is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dash: str = "solid"  # or "dot", or "dash" for a reference line
    is_mark: bool = False  # single points that stand out, such as the reader's own setting
    is_scattered: bool = False  # points without a line
    is_bars: bool = False
    is_area: bool = False  # the inside of a closed line, such as a confidence region
    colour: int | None = None  # which of the page's colours; by default the position among the lines
    notes: Sequence[str] = ()  # a text for each point, shown where the chart's ``point`` is "%{text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart: the id of its HTML element, its axes, its lines, a title and a note."""

    element: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    title: str = ""
    note: str = ""
    x_format: str = ""  # d3 formats, such as ",d" or ".0%"
    y_format: str = ""
    point: str = "%{y}"  # the hover text, in plotly's template language
    has_markers: bool = False
    from_zero: bool = False
    x_scale: str = "linear"  # or "log"
    y_scale: str = "linear"
    x_ticks: tuple[float, ...] = ()
    y_ticks: tuple[float, ...] = ()
    names_lines: bool = False  # show the legend for a single line, too
    kind: ClassVar[str] = "chart"

    @property
    def heading(self) -> str:
        return self.title or f"{self.y_title} against {self.x_title}"


class Numbers(NamedTuple):
    """The numbers of a chart as a table. Where there are several lines, the first column has their names."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def numbers(chart: Chart) -> Numbers:
    """The points of all lines, evenly thinned out where they are many. An ε is rounded up."""
    lines = [line for line in chart.lines if not line.is_area]
    most = max(FEWEST_OF_A_LINE, MOST_ROWS // max(1, len(lines)))
    names = len(lines) > 1
    return Numbers(
        headings=(*(("Line",) if names else ()), _capitalised(chart.x_title), _capitalised(chart.y_title)),
        rows=tuple(
            (
                *((line.name,) if names else ()),
                _number(x, chart.x_title, chart.x_format),
                _number(y, chart.y_title, chart.y_format),
            )
            for line in lines
            for x, y in thinned([*zip(line.x, line.y, strict=True)], most=most)
        ),
    )


def thinned(items: Sequence[Item], *, most: int) -> list[Item]:
    """At most ``most`` of the items, evenly spread, including the first and the last.

    >>> thinned([1, 2, 3, 4, 5, 6, 7], most=3)
    [1, 4, 7]
    """
    if len(items) <= most:
        return [*items]
    return [items[index] for index in sorted({round(n * (len(items) - 1) / (most - 1)) for n in range(most)})]


def draw_in_terminal(chart: Chart, *, width: int, top: float | None = None) -> str:
    """The first line of the chart, and its marks, as at most ``width`` (at least 40) characters a line, without colour.

    Values above ``top`` are cut off. A chart without positive, finite values is a sentence.
    """
    import plotext  # slow to import, and only a terminal needs it

    line, marks = chart.lines[0], [line for line in chart.lines if line.is_mark]
    largest = max(line.y, default=0.0)
    if not 0 < largest < math.inf:
        return f"No chart: {chart.y_title} is {'infinite' if largest else '0 throughout'}."
    top = largest if top is None else min(top, largest)
    is_log = chart.x_scale == "log"
    points = [(x, y) for x, y in (_interpolated(line) if is_log else zip(line.x, line.y, strict=True)) if y <= top]
    xs = [x for x, _ in points]
    figure = plotext.figure.clear()  # plotext has one figure per process
    figure.theme("colorless")
    figure.plot_size(max(NARROWEST, min(width, WIDEST)) - 1, HEIGHT)
    figure.title(chart.heading)
    figure.label(f"{chart.x_title} (logarithmic)" if is_log else chart.x_title, "x")
    if is_log:
        shown = one_two_five(xs)
        figure.ruler("x").ticks([math.log(value) for value in shown], [f"{value:g}" for value in shown])
        figure.ruler("x").lim(math.log(min(xs)), math.log(max(xs)))
    else:
        figure.ruler("x").ticks(*ticks(max(xs), finest=1.0))
        figure.ruler("x").lim(0, max(xs))
    figure.ruler("y").ticks(*ticks(top))
    figure.ruler("y").lim(0, top)
    figure.draw(figure.signal([math.log(x) for x in xs] if is_log else xs, [y for _, y in points]))
    for mark in marks:
        figure.draw(figure.signal([math.log(x) for x in mark.x] if is_log else [*mark.x], [*mark.y], marker=MARK))
    lines = plotext.uncolorize(figure.build().string()).splitlines()
    legend = [f" {MARK} {mark.name}" for mark in marks]
    return "\n".join([*(line.rstrip() for line in lines), *legend])


def ticks(largest: float, *, finest: float = 0.0) -> tuple[list[float], list[str]]:
    """At most six round numbers from zero to the largest, and their labels."""
    if not largest > 0:
        return [0.0], ["0"]
    power = 10.0 ** math.floor(math.log10(largest / 5))
    apart = max(finest, next(power * digit for digit in (1, 2, 5, 10) if power * digit * 5 >= largest * (1 - 1e-9)))
    values = [apart * index for index in range(math.floor(largest / apart * (1 + 1e-9)) + 1)]
    return values, [f"{value:,.10g}" for value in values]


def one_two_five(values: Sequence[float]) -> tuple[float, ...]:
    """The numbers 1, 2, 5, 10, 20, … within the range of the values, for a logarithmic axis."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return tuple(mark for power in powers for digit in (1, 2, 5) if low <= (mark := float(f"{digit}e{power}")) <= high)


def _interpolated(line: Line) -> list[tuple[float, float]]:
    """The points of a line and some between them, straight on logarithmic axes."""
    ends = [*zip(line.x, line.y, strict=True)]
    shares = [n / _POINTS_BETWEEN for n in range(_POINTS_BETWEEN)]
    return [(a ** (1 - s) * b**s, c ** (1 - s) * d**s) for (a, c), (b, d) in pairwise(ends) for s in shares] + ends[-1:]


def _number(value: float, title: str, form: str) -> str:
    if not math.isfinite(value):
        return "–"
    if title.startswith("ε"):
        return at_most(value)
    if form.endswith("%"):
        return f"{value:.2%}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.5g}"


def _capitalised(title: str) -> str:
    return title[:1].upper() + title[1:] if title[:1].isascii() else title  # a capital ε is no ε
