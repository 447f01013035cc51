"""ε against steps, drawn in characters for a terminal of any width, without colour codes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotext

from lehr.reports.curve import Point

HEIGHT = 16
NARROWEST, WIDEST = 40, 110


def draw(points: Sequence[Point], *, width: int) -> str:
    """The chart as lines of at most ``width`` characters (and at least 40); a sentence where there is no curve."""
    largest_epsilon = max(point.epsilon for point in points)
    if not 0 < largest_epsilon < math.inf:
        return f"No chart: ε is {'infinite' if largest_epsilon else '0 throughout'}."
    figure = plotext.figure.clear()  # plotext has one figure per process; what an earlier chart left is removed
    figure.theme("colorless")
    figure.plot_size(max(NARROWEST, min(width, WIDEST)) - 1, HEIGHT)
    figure.title("ε against steps (upper bound)")
    figure.label("steps", "x")
    steps, epsilons = [point.steps for point in points], [point.epsilon for point in points]
    for axis, largest, finest in (("x", max(steps), 1.0), ("y", largest_epsilon, 0.0)):
        figure.ruler(axis).ticks(*ticks(largest, finest=finest))
        figure.ruler(axis).lim(0, largest)
    figure.draw(figure.signal(steps, epsilons))
    lines = plotext.uncolorize(figure.build().string()).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def ticks(largest: float, *, finest: float = 0.0) -> tuple[list[float], list[str]]:
    """At most six round numbers from zero to the largest, and how they are written."""
    if not largest > 0:
        return [0.0], ["0"]
    power = 10.0 ** math.floor(math.log10(largest / 5))
    apart = max(finest, next(power * digit for digit in (1, 2, 5, 10) if power * digit * 5 >= largest * (1 - 1e-9)))
    ticks = [apart * index for index in range(math.floor(largest / apart * (1 + 1e-9)) + 1)]
    return ticks, [f"{tick:,.10g}" for tick in ticks]
