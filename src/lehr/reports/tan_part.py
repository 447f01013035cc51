"""What the total amount of noise says, as a part of a plan's page: two figures for the plan's own numbers, and tables.

The figures are those of the paper (Sander, Stock & Sablayrolles 2023): ε against the noise multiplier at constant η,
and the Rényi divergence of a step over its approximation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lehr.planning.constant_eta import Curve, CurvePoint, RatioCurve, deciding_order
from lehr.planning.outlook import Outlook
from lehr.planning.tan import AN_ESTIMATE
from lehr.reports import tan_words
from lehr.reports.chart import Chart, Figure, Line
from lehr.reports.rounding import at_most, exactly
from lehr.reports.tan_words import Table

CONSTANT_ETA = (
    "Every point has the η of the plan: less noise goes with smaller batches. Read from the right: as long as the line "
    "is flat, a smaller batch costs no privacy; where it turns up, at the privacy wall, it does. The dashed lines are "
    f"the least ε at this η, what η alone says, {AN_ESTIMATE}, and, upright, the noise multiplier at which the wall "
    "begins."
)
RATIO = (
    "The Rényi divergence of one step over its approximation, order times η² of a step. Where a line is near 1, ε "
    "depends on η alone. The diamond is the plan, at the order that decides its ε. Noise whose line has left 1 before "
    "that order is behind the wall."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What a page says of the total amount of noise."""

    facts: Mapping[str, str]
    sentences: tuple[str, ...]
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...]

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The charts that the page has to draw."""
        return tuple(figure.chart for figure in self.figures)


def part(outlook: Outlook) -> Part:
    """What is to be said; without figures where the outlook has none."""
    return Part(
        facts=tan_words.facts(outlook.standing),
        sentences=tuple(tan_words.sentences(outlook)),
        figures=tuple(figures(outlook)),
        tables=tan_words.tables(outlook),
    )


def figures(outlook: Outlook) -> Iterator[Figure]:
    """Those that the outlook has the numbers of."""
    if outlook.curves:
        chart = _chart("constant-eta", x_title="noise multiplier σ", y_title="ε", lines=tuple(_curve_lines(outlook)))
        yield Figure(title="ε against the noise multiplier at this η", chart=chart, note=CONSTANT_ETA)
    if outlook.ratio_curves:
        lines = tuple(_ratio_lines(outlook))
        chart = _chart("divergence-ratio", x_title="Rényi order α", y_title="divergence / (α·η²)", lines=lines)
        yield Figure(title="Where ε stops following η", chart=chart, note=RATIO)


def _chart(element: str, *, x_title: str, y_title: str, lines: tuple[Line, ...]) -> Chart:
    return Chart(
        element=element,
        x_title=x_title,
        y_title=y_title,
        x_format="~g",
        y_format="~g",
        point="%{text}",
        has_markers=True,
        from_zero=False,
        lines=lines,
        x_scale="log",
        y_scale="log",
    )


def _curve_lines(outlook: Outlook) -> Iterator[Line]:
    own_first = sorted(outlook.curves, key=lambda curve: (not curve.is_of_plan, curve.steps))
    for curve in own_first:
        yield Line(
            name=_steps(curve.steps),
            x=[point.noise_multiplier for point in curve.points],
            y=[point.epsilon for point in curve.points],
            notes=[_curve_note(outlook, curve, point) for point in curve.points],
        )
    for curve in own_first[:1]:
        yield _by_balle20(curve)
    yield from _levels(outlook)
    standing = outlook.standing
    yield Line(
        name="your plan",
        x=[standing.noise_multiplier],
        y=[standing.epsilon],
        is_mark=True,
        notes=[f"your plan: σ = {exactly(standing.noise_multiplier)}, ε ≤ {at_most(standing.epsilon)}"],
    )


def _by_balle20(curve: Curve) -> Line:
    counted = [(point.noise_multiplier, point.epsilon_balle20) for point in curve.points]
    shown = [(noise, epsilon) for noise, epsilon in counted if epsilon is not None]
    return Line(
        name=f"{_steps(curve.steps)} by rdp-balle20, as in the paper",
        x=[noise for noise, _ in shown],
        y=[epsilon for _, epsilon in shown],
        dash="dot",
        notes=[f"by rdp-balle20: ε ≤ {at_most(epsilon)}" for _, epsilon in shown],
    )


def _levels(outlook: Outlook) -> Iterator[Line]:
    noises = [point.noise_multiplier for curve in outlook.curves for point in curve.points]
    ends = [min(noises), max(noises)]
    standing = outlook.standing
    if standing.wall is not None:
        top = max(point.epsilon for curve in outlook.curves for point in curve.points)
        note = f"the privacy wall: σ = {standing.wall:.3g}"
        yield Line(
            name="privacy wall",
            x=[standing.wall] * 2,
            y=[standing.epsilon_limit, top],
            dash="dash",
            notes=[note] * 2,
        )
    for name, epsilon in (
        ("least ε at this η", standing.epsilon_limit),
        (f"from η alone, {AN_ESTIMATE}", standing.epsilon_estimate),
    ):
        yield Line(name=name, x=ends, y=[epsilon, epsilon], dash="dash", notes=[f"{name}: {epsilon:.4g}"] * 2)


def _curve_note(outlook: Outlook, curve: Curve, point: CurvePoint) -> str:
    batch = point.sampling_probability * outlook.plan.records
    return f"{_steps(curve.steps)}, batch {batch:,.0f}: σ = {point.noise_multiplier:.3g}, ε ≤ {at_most(point.epsilon)}"


def _ratio_lines(outlook: Outlook) -> Iterator[Line]:
    for curve in outlook.ratio_curves:
        name = f"σ = {curve.noise_multiplier:.4g}{', your plan' * curve.is_of_plan}"
        pairs = zip(curve.orders, curve.ratios, strict=True)
        yield Line(
            name=name,
            x=list(curve.orders),
            y=list(curve.ratios),
            notes=[f"{name}, α = {order:g}: {ratio:.4g}" for order, ratio in pairs],
        )
    own = next((curve for curve in outlook.ratio_curves if curve.is_of_plan), None)
    if own is not None:
        yield _deciding(outlook, own)


def _deciding(outlook: Outlook, own: RatioCurve) -> Line:
    """The plan's own line at the order nearest to the one that decides."""
    order = deciding_order(outlook.plan)
    place = min(range(len(own.orders)), key=lambda index: abs(own.orders[index] - order))
    note = f"your plan: the order that decides is about {order:.3g}, where the ratio is {own.ratios[place]:.4g}"
    return Line(
        name="your plan, at the order that decides",
        x=[own.orders[place]],
        y=[own.ratios[place]],
        is_mark=True,
        notes=[note],
    )


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count > 1)}"
