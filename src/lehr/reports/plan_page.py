"""A plan as one web page that needs no network: the curve of ε, the numbers in tables, and the claim in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files

import jinja2
import plotly.offline
from markupsafe import Markup

from lehr.accounting import Bound, version
from lehr.claims import Claim, Standing
from lehr.planning.plan import Plan
from lehr.reports.curve import Point
from lehr.reports.rounding import at_most, exactly
from lehr.reports.wording import guarantee

TEMPLATE = "plan_page.html.jinja"
MILESTONES = 10  # rows of the table beside the chart, for readers without a script or without eyes for a chart


def render(plan: Plan, *, bound: Bound, claim: Claim, points: Sequence[Point]) -> str:
    """The whole page. Everything but the script of plotly is escaped."""
    return _template().render(
        plan=_rows(plan),
        bound=bound,
        guarantee=_in_words(bound),
        claim=claim,
        assumed=[premise.statement for premise in claim.premises if premise.standing is Standing.ASSUMED],
        curve={"steps": [point.steps for point in points], "epsilon": [_or_none(point.epsilon) for point in points]},
        has_curve=all(math.isfinite(point.epsilon) for point in points),
        milestones=_milestones(points),
        version=version(),
        # The bundle is a constant of plotly's package, not a value of ours; it holds no closing script tag.
        plotly=Markup(plotly.offline.get_plotlyjs()),
    )


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"at_most": at_most, "exactly": exactly}
    return environment.from_string(files("lehr.reports").joinpath(TEMPLATE).read_text(encoding="utf-8"))


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


def _or_none(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
