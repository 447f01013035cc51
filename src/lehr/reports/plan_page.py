"""The page of a plan: ε against steps, the plan's numbers, why the ε holds, and its total amount of noise (TAN).

The TAN figures are those of Sander, Stock & Sablayrolles 2023: ε against the noise multiplier at constant η, and the
Rényi divergence of a step over its approximation. The terminal shows the same facts, tables and charts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lehr.accounting import Bound, version
from lehr.accounting.claims import Claim, Standing
from lehr.accounting.events import Adjacency
from lehr.certificates.guarantee import delta_warning, guarantee_text
from lehr.config import BANDED_INVERSE
from lehr.planning.plan import RECORD, Plan
from lehr.planning.tan import (
    AN_ESTIMATE,
    FAIR_FROM,
    TanAnalysis,
    TanOutlook,
    best_for_its_cost,
    cheapest_nearly_as_good,
    deciding_order,
)
from lehr.reports.chart import Chart, Line, draw_in_terminal
from lehr.reports.page import Block, Facts, Page, Paragraph, Section, Table, note, render_page
from lehr.rounding import at_most, exactly, rounded_up

POINTS = 200  # of the curve
ABOVE_LIMIT = 4  # times the least ε: the top of the terminal's chart
CURVE = (
    "An upper bound for a run planned with this many steps. A run that stops early because of what it saw is still "
    "charged for all of its planned steps."
)
CONSTANT_ETA = (
    "Every point has the same η as the plan: less noise goes with smaller batches. Where the line is flat, a smaller "
    "batch costs no privacy; where it turns up, at the privacy wall, it does. Dashed: the least ε at this η, the ε "
    f"from η alone ({AN_ESTIMATE}), and the noise multiplier at which the wall begins."
)
RATIO = (
    "The Rényi divergence of one step over its approximation, order times η² of a step. Where a line is near 1, ε "
    "depends on η alone. The diamond is the plan, at the order that decides its ε. Noise whose line has left 1 before "
    "that order is behind the wall."
)
ALTERNATIVES = "Other batches and other steps cost no more ε than the plan. Every ε is tight, and noise is rounded up."


def epsilon_chart(plan: Plan) -> Chart:
    """ε against steps, from zero to the plan's."""
    curve = plan.curve()
    steps = sorted({round(index * plan.steps / (POINTS - 1)) for index in range(POINTS)})
    return Chart(
        element="curve",
        title="ε against steps",
        note=CURVE,
        x_title="steps",
        y_title="ε",
        x_format=",d",
        from_zero=True,
        lines=(Line(name="ε", x=steps, y=[curve.drawn_at(count) for count in steps]),),
    )


def render(plan: Plan, *, bound: Bound, claim: Claim, curve: Chart, outlook: TanOutlook | None = None) -> str:
    """The page, with the analysis of the total amount of noise where it is given."""
    words, blocks = "ε is infinite: this plan protects nobody.", list[Block]()
    if math.isfinite(bound.epsilon):
        words = guarantee_text(epsilon=bound.epsilon, delta=bound.delta, adjacency=bound.adjacency)
        blocks.append(curve)
    blocks.append(Facts(title="The plan", rows=[*plan_facts(plan, bound).items()]))
    if outlook is not None:
        blocks.append(Facts(title="Total amount of noise", rows=[*tan_facts(outlook.standing).items()]))
        blocks += tan_charts(outlook)
        blocks.append(Section(title="Alternatives", parts=[note(ALTERNATIVES), *tan_tables(outlook)]))
    return render_page(
        Page(
            title=f"Privacy plan: ε = {at_most(bound.epsilon)}",
            heading="Privacy plan",
            headline=f"ε = {at_most(bound.epsilon)}",
            small=f"at δ = {exactly(bound.delta)}",
            introduction=[Paragraph(words)],
            blocks=[*blocks, Facts(title="Why this ε holds", rows=[*claim_facts(claim)])],
            footer=f"Computed by {version()}.",
        )
    )


def plan_facts(plan: Plan, bound: Bound) -> dict[str, str]:
    """The numbers of a plan, and who counted them."""
    caution = delta_warning(plan.delta, records=plan.records)
    return {
        "ε": f"{at_most(bound.epsilon)}  at δ = {exactly(plan.delta)}, {plan.adjacency.value}",
        "noise multiplier": exactly(plan.noise_multiplier),
        "expected batch size": f"{plan.expected_batch_size:,.10g} of {plan.records:,} {plan.drawn}s",
        **({} if plan.unit == RECORD else {"unit of privacy": plan.unit_text}),
        **_sampling_facts(plan),
        "sampling probability": f"{plan.sampling_probability:.6g}",
        **({} if plan.bands == 1 else {"bands": _bands_text(plan)}),
        "steps": f"{plan.steps:,}  ({plan.steps * plan.sampling_probability:.4g} passes over the data)",
        "counted by": bound.accountant,
        **({} if caution is None else {"caution": caution}),
        **{f"not {other.accountant}": other.reason for other in bound.passed_over},
    }


def _sampling_facts(plan: Plan) -> dict[str, str]:
    if plan.bins is not None:
        return {"sampling": f"balls-in-bins, {plan.bins:,} steps in an epoch"}
    if plan.largest_batch is not None:
        return {"sampling": f"truncated-poisson, at most {plan.largest_batch:,} in a batch"}
    return {} if plan.adjacency is Adjacency.ADD_OR_REMOVE_ONE else {"sampling": "without-replacement"}


def _bands_text(plan: Plan) -> str:
    of = "of the inverse matrix: " if plan.correlation == BANDED_INVERSE else ""
    return f"{plan.bands:,} {of}correlated noise, records in {plan.num_groups:,} groups"


def claim_facts(claim: Claim) -> Iterator[tuple[str, str | list[str]]]:
    """What a claim rests on."""
    yield "claim", claim.kind
    yield "theorem", claim.theorem
    yield "accountant", claim.accountant
    yield "adjacency", claim.adjacency.value
    if claim.proof:
        yield "proof", claim.proof
    yield "assumed", [premise.statement for premise in claim.premises if premise.standing is Standing.ASSUMED]


# The total amount of noise.


def tan_facts(standing: TanAnalysis) -> dict[str, str]:
    """Where a plan stands by its total amount of noise."""
    total = standing.total
    wall = "none found at this η and these steps"
    if standing.wall is not None:
        side = "clear of it" if standing.is_clear_of_wall else "behind it"
        wall = f"below a noise multiplier of {standing.wall:.3g}; the plan is {side}"
    fair = "" if standing.is_estimate_fair else f", and too rough below a noise multiplier of {FAIR_FROM:g}"
    share = f"{standing.share_of_ceiling:.1%} of the {standing.ceiling:.4g} that this ε allows"
    return {
        "η of a step": f"{total.eta_step:.4g}",
        "η of the run": f"{total.eta:.4g}",
        "total noise, 1/η": f"{total.total_noise:.4g}",
        "ε, tight": f"{at_most(standing.epsilon)}, by {standing.accountant}; this one decides",
        "ε from η alone": f"{standing.epsilon_estimate:.4g}, {AN_ESTIMATE}{fair}; {_off(standing.estimate_off)}",
        "ε by rdp-balle20": f"{at_most(standing.epsilon_balle20)}, as in the paper; {_off(standing.balle20_off)}",
        "least ε at this η": f"{at_most(standing.epsilon_limit)}; the plan is {standing.above_limit:.1%} above it",
        "privacy wall": wall,
        "signal q·√steps/σ": f"{total.signal:.4g}, {share}",
    }


def _off(share: float) -> str:
    return f"{abs(share):.1%} {'above' if share >= 0 else 'below'} the tight ε"


_CELLS = {
    "batch": lambda row: f"{row.expected_batch_size:,.10g}",
    "steps": lambda row: f"{row.steps:,}",
    "kept": lambda row: row.keeps,
    "noise": lambda row: noise_text(row.noise_multiplier),
    "ε ≤": lambda row: at_most(row.epsilon),
    "signal": lambda row: f"{row.signal:.3f}" if row.signal >= 0.1 else f"{row.signal:.3g}",
    "gain": lambda row: "" if row.is_plan else f"{row.signal_gain:+.1%}",
    "from η": lambda row: f"{row.epsilon_estimate:.4g}",
    "cost": lambda row: f"× {row.cost_factor:.3g}",
    "learning rate": lambda row: f"× {row.learning_rate_factor:.4g}",
}


def tan_tables(outlook: TanOutlook) -> list[Table]:
    """The alternatives: other batches, other steps, more data."""
    best, nearly = best_for_its_cost(outlook.other_batches), cheapest_nearly_as_good(outlook.other_batches)

    def remark(row: Any) -> str:
        own = "your plan" if row.is_plan else "most for its cost" if row is best else ""
        remarks = (own, "nearly as good" if row is nearly else "", "behind the wall" if row.is_behind_wall else "")
        return ", ".join(filter(None, remarks))

    cells = {**_CELLS, "": remark}
    tables = (
        (
            "Other batches, same steps, same ε",
            outlook.other_batches,
            ("batch", "noise", "ε ≤", "signal", "gain", "cost", ""),
            "The cost is the number of gradients, batch times steps. Behind the wall, ε is more than a tenth above the "
            "least at the same η.",
        ),
        (
            "Other steps at nearly the same η, same ε",
            outlook.other_steps,
            ("batch", "steps", "noise", "ε ≤", "gain", "cost", "learning rate"),
            "The learning rate is multiplied by one over the factor of the steps. A simulation can show whether fewer "
            "steps are enough.",
        ),
        (
            "Twice the records, half the δ",
            outlook.twice_the_data,
            ("kept", "batch", "noise", "ε ≤", "from η", "cost"),
            f"Twice the batch on twice the records keeps η. The ε from η alone is {AN_ESTIMATE}.",
        ),
    )
    return [
        Table(title=title, headings=names, rows=[[cells[name](row) for name in names] for row in rows], notes=[text])
        for title, rows, names, text in tables
        if rows
    ]


def noise_text(value: float) -> str:
    """A noise multiplier in five digits, rounded up, so that the ε beside it holds."""
    return f"{rounded_up(value, digits=5):.5g}"


def tan_charts(outlook: TanOutlook) -> list[Chart]:
    """The figures; without lines where the outlook has no numbers for them."""
    style: Any = {"x_scale": "log", "y_scale": "log", "x_format": "~g", "y_format": "~g", "has_markers": True}
    return [
        Chart(
            element="constant-eta",
            title="ε against the noise multiplier at this η",
            note=CONSTANT_ETA,
            x_title="noise multiplier",
            y_title="ε",
            lines=tuple(_eta_lines(outlook)),
            **style,
        ),
        Chart(
            element="divergence-ratio",
            title="Where ε stops following η",
            note=RATIO,
            x_title="Rényi order α",
            y_title="divergence / (α·η²)",
            lines=tuple(_ratio_lines(outlook)),
            **style,
        ),
    ]


def draw_constant_eta(outlook: TanOutlook, *, width: int) -> str:
    """ε against the noise multiplier for the plan's own steps, for a terminal."""
    if not any(curve.is_of_plan for curve in outlook.curves):
        return "No chart: at this η no other noise multiplier can be sampled."
    standing = outlook.standing
    top = max(ABOVE_LIMIT * standing.epsilon_limit, 1.2 * standing.epsilon)
    return draw_in_terminal(tan_charts(outlook)[0], width=width, top=top)


def _eta_lines(outlook: TanOutlook) -> Iterator[Line]:
    """A line for each number of steps, the plan's first; references; and the plan as a mark."""
    standing, records = outlook.standing, outlook.plan.records
    points = [point for curve in outlook.curves for point in curve.points]
    for curve in sorted(outlook.curves, key=lambda curve: (not curve.is_of_plan, curve.steps)):
        name, noises = f"{curve.steps:,} steps", [point.noise_multiplier for point in curve.points]
        notes = [
            f"{name}, batch {point.sampling_probability * records:,.0f}: σ = {point.noise_multiplier:.3g}, "
            f"ε ≤ {at_most(point.epsilon)}"
            for point in curve.points
        ]
        yield Line(name=name, x=noises, y=[point.epsilon for point in curve.points], notes=notes)
        published = [point.epsilon_balle20 for point in curve.points if point.epsilon_balle20 is not None]
        if published:
            notes = [f"by rdp-balle20: ε ≤ {at_most(epsilon)}" for epsilon in published]
            yield Line(name=f"{name} by rdp-balle20, as in the paper", x=noises, y=published, dash="dot", notes=notes)
    if not points:
        return
    ends = [pick(point.noise_multiplier for point in points) for pick in (min, max)]
    heights = [standing.epsilon_limit, max(point.epsilon for point in points)]
    references = [
        ("least ε at this η", ends, [standing.epsilon_limit] * 2, f"{standing.epsilon_limit:.4g}"),
        (f"from η alone, {AN_ESTIMATE}", ends, [standing.epsilon_estimate] * 2, f"{standing.epsilon_estimate:.4g}"),
    ]
    if standing.wall is not None:
        references.append(("privacy wall", [standing.wall] * 2, heights, f"σ = {standing.wall:.3g}"))
    for name, x, y, value in references:
        yield Line(name=name, x=x, y=y, dash="dash", notes=[f"{name}: {value}"] * 2)
    text = f"your plan: σ = {exactly(standing.noise_multiplier)}, ε ≤ {at_most(standing.epsilon)}"
    yield Line(name="your plan", x=[standing.noise_multiplier], y=[standing.epsilon], is_mark=True, notes=[text])


def _ratio_lines(outlook: TanOutlook) -> Iterator[Line]:
    """A line for each noise multiplier, and a mark on the plan's own, at the order nearest to the one that decides."""
    for curve in outlook.ratio_curves:
        name = f"σ = {curve.noise_multiplier:.4g}{', your plan' * curve.is_of_plan}"
        notes = [f"{name}, α = {x:g}: {ratio:.4g}" for x, ratio in zip(curve.orders, curve.ratios, strict=True)]
        yield Line(name=name, x=curve.orders, y=curve.ratios, notes=notes)
    for own in (curve for curve in outlook.ratio_curves if curve.is_of_plan):
        decides = deciding_order(outlook.plan)
        order, ratio = min(zip(own.orders, own.ratios, strict=True), key=lambda pair: abs(pair[0] - decides))
        text = f"your plan: the order that decides is about {decides:.3g}, where the ratio is {ratio:.4g}"
        yield Line(name="your plan, at the order that decides", x=[order], y=[ratio], is_mark=True, notes=[text])
