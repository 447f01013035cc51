"""ε against the noise multiplier at constant η, drawn in characters, with the plan marked on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import plotext

from lehr.planning.constant_eta import Curve
from lehr.planning.tan import Standing
from lehr.reports.terminal_chart import HEIGHT, NARROWEST, WIDEST, ticks

TITLE = "ε against noise at this η (tight)"
_MARK = "●"
_ABOVE = 4  # times the least ε: what the wall does further up would leave no room for the rest
_STEPS_BETWEEN = 60  # points drawn between two counted ones, since plotext joins points of different columns roughly


def draw(curves: Sequence[Curve], standing: Standing, *, width: int) -> str:
    """The curve of the plan's own steps as lines of at most ``width`` characters (and at least 40), and a legend."""
    own = next((curve for curve in curves if curve.is_of_plan), None)
    if own is None:
        return "No chart: at this η no other noise multiplier can be sampled."
    top = min(max(point.epsilon for point in own.points), max(_ABOVE * standing.epsilon_limit, 1.2 * standing.epsilon))
    figure = plotext.figure.clear()  # plotext has one figure per process; what an earlier chart left is removed
    figure.theme("colorless")
    figure.plot_size(max(NARROWEST, min(width, WIDEST)) - 1, HEIGHT)
    figure.title(TITLE)
    figure.label("noise multiplier (logarithmic)", "x")
    line = [(noise, epsilon) for noise, epsilon in _between(own) if epsilon <= top]
    noises = [noise for noise, _ in line]
    first, last = math.log(min(noises)), math.log(max(noises))
    figure.ruler("x").ticks(*_noise_ticks(min(noises), max(noises)))
    figure.ruler("x").lim(first, last)
    figure.ruler("y").ticks(*ticks(top))
    figure.ruler("y").lim(0, top)
    figure.draw(figure.signal([math.log(noise) for noise in noises], [epsilon for _, epsilon in line]))
    figure.draw(figure.signal([math.log(standing.noise_multiplier)], [standing.epsilon], marker=_MARK))
    lines = plotext.uncolorize(figure.build().string()).splitlines()
    steps = f"{own.steps:,} step{'s' * (own.steps > 1)}"
    legend = f" {_MARK} the plan; {steps}, η = {standing.total.eta:.4g}, batches that keep η"
    return "\n".join([*(line.rstrip() for line in lines), legend])


def _between(curve: Curve) -> Iterator[tuple[float, float]]:
    """The points of a curve and some between them, straight on logarithmic axes."""
    for left, right in zip(curve.points, curve.points[1:], strict=False):
        for place in range(_STEPS_BETWEEN):
            part = place / _STEPS_BETWEEN
            yield (
                left.noise_multiplier ** (1 - part) * right.noise_multiplier**part,
                left.epsilon ** (1 - part) * right.epsilon**part,
            )
    yield curve.points[-1].noise_multiplier, curve.points[-1].epsilon


def _noise_ticks(smallest: float, largest: float) -> tuple[list[float], list[str]]:
    powers = range(math.floor(math.log10(smallest)), math.ceil(math.log10(largest)) + 1)
    values = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    shown = [value for value in values if smallest <= value <= largest]
    return [math.log(value) for value in shown], [f"{value:g}" for value in shown]
