"""A chart as plain values, to be drawn by a web page or in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

HEIGHT = 16  # lines of a terminal
NARROWEST, WIDEST = 40, 110
MARK = "●"

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
    notes: Sequence[str] = ()  # the hover text of each point


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart: the id of its HTML element, its axes, its lines, a title and a note. Without lines it is left out."""

    element: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    title: str = ""
    note: str = ""
    x_format: str = ""  # d3 formats, such as ",d" or ".0%"
    y_format: str = ""
    point: str = ""  # the hover text, in plotly's template language; by default both numbers
    has_markers: bool = False
    from_zero: bool = False
    x_scale: str = "linear"  # or "log"
    y_scale: str = "linear"
    x_ticks: tuple[float, ...] = ()
    x_labels: tuple[str, ...] = ()  # of the ticks
    names_lines: bool = False  # show the legend for a single line, too
    kind: ClassVar[str] = "chart"

    def __bool__(self) -> bool:
        return bool(self.lines)

    @property
    def heading(self) -> str:
        return self.title or f"{self.y_title} against {self.x_title}"


def thin(items: Sequence[Item], *, most: int) -> list[Item]:
    """At most ``most`` of the items, evenly spread, including the first and the last.

    >>> thin([1, 2, 3, 4, 5, 6, 7], most=3)
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
    scale = math.log if is_log else float
    points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y <= top]
    xs = [x for x, _ in points]
    ticks, labels = _log_ticks(xs) if is_log else _ticks(max(xs), finest=1.0)
    figure = plotext.figure.clear()  # plotext has one figure per process
    figure.theme("colorless")
    figure.plot_size(max(NARROWEST, min(width, WIDEST)) - 1, HEIGHT)
    figure.title(chart.heading)
    figure.label(f"{chart.x_title} (logarithmic)" if is_log else chart.x_title, "x")
    figure.ruler("x").ticks([*map(scale, ticks)], labels).lim(scale(min(xs)) if is_log else 0, scale(max(xs)))
    figure.ruler("y").ticks(*_ticks(top)).lim(0, top)
    figure.draw(figure.signal([*map(scale, xs)], [y for _, y in points]).lines())
    for mark in marks:
        figure.draw(figure.signal([*map(scale, mark.x)], [*mark.y], marker=MARK))
    lines = plotext.uncolorize(figure.build().string()).splitlines()
    return "\n".join([*(line.rstrip() for line in lines), *(f" {MARK} {mark.name}" for mark in marks)])


def _ticks(largest: float, *, finest: float = 0.0) -> tuple[list[float], list[str]]:
    """At most six round numbers from zero to the largest, and their labels."""
    if not largest > 0:
        return [0.0], ["0"]
    power = 10.0 ** math.floor(math.log10(largest / 5))
    apart = max(finest, next(power * digit for digit in (1, 2, 5, 10) if power * digit * 5 >= largest * (1 - 1e-9)))
    values = [apart * index for index in range(math.floor(largest / apart * (1 + 1e-9)) + 1)]
    return values, [f"{value:,.10g}" for value in values]


def _log_ticks(values: Sequence[float]) -> tuple[list[float], list[str]]:
    """The numbers 1, 2, 5, 10, 20, … within the range of the values, and their labels."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    round_numbers = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    ticks = [number for number in round_numbers if low <= number <= high]
    return ticks, [f"{number:g}" for number in ticks]
