"""ε against steps for one plan, as points that the terminal's chart and the web page both draw."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.planning.plan import Plan

POINTS = 200


@dataclass(frozen=True, slots=True)
class Point:
    """The ε of a run that had planned this many steps."""

    steps: int
    epsilon: float


def points(plan: Plan, *, most: int = POINTS) -> tuple[Point, ...]:
    """At most ``most`` points, evenly spread from no step to the plan's last one, each a whole number of steps."""
    curve = plan.curve()
    counts = sorted({round(index * plan.steps / (most - 1)) for index in range(most)})
    return tuple(Point(steps, curve.drawn_at(steps)) for steps in counts)
