"""A plan as one web page that needs no network: the curve of ε, the numbers in tables, and the claim in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lehr.accounting import Bound, version
from lehr.claims import Claim, Standing
from lehr.planning.outlook import Outlook
from lehr.planning.plan import Plan
from lehr.reports import page_frame, tan_part
from lehr.reports.chart import Chart, Line
from lehr.reports.curve import Point
from lehr.reports.rounding import exactly
from lehr.reports.wording import guarantee

TEMPLATE = "plan_page.html.jinja"
MILESTONES = 10  # rows of the table beside the chart, for readers without a script or without eyes for a chart


def render(plan: Plan, *, bound: Bound, claim: Claim, points: Sequence[Point], outlook: Outlook | None = None) -> str:
    """The whole page, with what the total amount of noise says where that is given.

    Everything but the script of plotly is escaped.
    """
    part = None if outlook is None else tan_part.part(outlook)
    curve = [_curve(points)] if all(math.isfinite(point.epsilon) for point in points) else []
    return page_frame.render(
        TEMPLATE,
        charts=[*curve, *(() if part is None else part.charts)],
        has_curve=bool(curve),
        tan=part,
        plan=_rows(plan),
        bound=bound,
        guarantee=_in_words(bound),
        claim=claim,
        assumed=[premise.statement for premise in claim.premises if premise.standing is Standing.ASSUMED],
        milestones=_milestones(points),
        version=version(),
    )


def _curve(points: Sequence[Point]) -> Chart:
    return Chart(
        element="curve",
        x_title="steps",
        y_title="ε",
        x_format=",d",
        y_format="",
        point="%{x:,} steps<br>ε ≤ %{y:.4g}",
        has_markers=False,
        from_zero=True,
        lines=(Line(name="ε", x=[point.steps for point in points], y=[point.epsilon for point in points]),),
    )


def _rows(plan: Plan) -> Mapping[str, str]:
    return {
        "Noise multiplier": exactly(plan.noise_multiplier),
        "Expected batch size": f"{plan.expected_batch_size:,.10g}",
        "Records (stated as public)": f"{plan.records:,}",
        "Sampling probability": f"{plan.sampling_probability:.6g}",
        "Steps": f"{plan.steps:,}",
        "Passes over the data": f"{plan.steps * plan.sampling_probability:.4g}",
        "δ": exactly(plan.delta),
        "Adjacency": plan.adjacency.value,
    }


def _in_words(bound: Bound) -> str:
    if not math.isfinite(bound.epsilon):
        return "ε is infinite: this plan protects nobody."
    return guarantee(epsilon=bound.epsilon, delta=bound.delta, adjacency=bound.adjacency)


def _milestones(points: Sequence[Point]) -> list[Point]:
    last = len(points) - 1
    return [points[index] for index in sorted({round(last * part / MILESTONES) for part in range(1, MILESTONES + 1)})]
