"""The page of a plan: ε against steps, the plan's numbers, why the ε holds, and its total amount of noise (TAN).

The TAN figures are those of Sander, Stock & Sablayrolles 2023: ε against the noise multiplier at constant η, and the
Rényi divergence of a step over its approximation. The terminal shows the same texts, tables and charts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lehr.accounting import Bound, version
from lehr.accounting.claims import Claim, Standing
from lehr.certificates.guarantee import guarantee_text
from lehr.planning.plan import Plan
from lehr.planning.tan import (
    AN_ESTIMATE,
    FAIR_FROM,
    Proposal,
    TanAnalysis,
    TanOutlook,
    best_for_its_cost,
    cheapest_nearly_as_good,
    deciding_order,
)
from lehr.reports.chart import Chart, Line, draw_in_terminal, thinned
from lehr.reports.page import Facts, Page, Paragraph, Part, Section, Table, figure, note, render_page
from lehr.rounding import at_most, exactly, rounded_up

POINTS = 200  # of the curve
MILESTONES = 10  # rows of the table beside it
LITTLE = 0.05  # a smaller gain of signal is called small
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


@dataclass(frozen=True, slots=True)
class EpsilonPoint:
    """The ε of a run planned with this many steps."""

    steps: int
    epsilon: float


def epsilon_points(plan: Plan, *, most: int = POINTS) -> tuple[EpsilonPoint, ...]:
    """At most ``most`` points of ε against steps, evenly spread from zero to the plan's steps."""
    curve = plan.curve()
    counts = sorted({round(index * plan.steps / (most - 1)) for index in range(most)})
    return tuple(EpsilonPoint(steps, curve.drawn_at(steps)) for steps in counts)


def epsilon_chart(points: Sequence[EpsilonPoint]) -> Chart:
    """ε against steps."""
    return Chart(
        element="curve",
        title="ε against steps",
        note=CURVE,
        x_title="steps",
        y_title="ε",
        x_format=",d",
        point="%{x:,} steps<br>ε ≤ %{y:.4g}",
        from_zero=True,
        lines=(Line(name="ε", x=[point.steps for point in points], y=[point.epsilon for point in points]),),
    )


def render(
    plan: Plan, *, bound: Bound, claim: Claim, points: Sequence[EpsilonPoint], outlook: TanOutlook | None = None
) -> str:
    """The page, with the analysis of the total amount of noise where it is given."""
    words = "ε is infinite: this plan protects nobody."
    if math.isfinite(bound.epsilon):
        words = guarantee_text(epsilon=bound.epsilon, delta=bound.delta, adjacency=bound.adjacency)
    curve = [figure(epsilon_chart(points))] if all(math.isfinite(point.epsilon) for point in points) else []
    facts = [
        ("Noise multiplier", exactly(plan.noise_multiplier)),
        ("Expected batch size", f"{plan.expected_batch_size:,.10g}"),
        ("Records (stated as public)", f"{plan.records:,}"),
        ("Sampling probability", f"{plan.sampling_probability:.6g}"),
        ("Steps", f"{plan.steps:,}"),
        ("Passes over the data", f"{plan.steps * plan.sampling_probability:.4g}"),
        ("δ", exactly(plan.delta)),
        ("Adjacency", plan.adjacency.value),
    ]
    title = "ε for fewer steps"
    rows = [(f"{point.steps:,}", at_most(point.epsilon)) for point in thinned(points, most=MILESTONES + 1)[1:]]
    fewer = Table(title=title, headings=("Planned steps", "ε ≤"), rows=rows, numeric=(False, True))
    tables = (
        Section(title="The plan", parts=[Facts(rows=facts, are_numbers=True)]),
        Section(title=title, parts=[fewer]),
    )
    return render_page(
        Page(
            title=f"Privacy plan: ε = {at_most(bound.epsilon)}",
            heading="Privacy plan",
            headline=f"ε = {at_most(bound.epsilon)}",
            small=f"at δ = {exactly(bound.delta)}",
            introduction=[Paragraph(words)],
            blocks=[*curve, tables, *([] if outlook is None else _tan_sections(outlook)), _why(bound, claim)],
            footer=f"Computed by {version()}.",
        )
    )


def _why(bound: Bound, claim: Claim) -> Section:
    rows: list[tuple[str, str | Sequence[str]]] = [
        ("Claim", claim.kind),
        ("Theorem", claim.theorem),
        ("Accountant", bound.accountant),
        *([("Proof", claim.proof)] if claim.proof else []),
        ("Assumed", [premise.statement for premise in claim.premises if premise.standing is Standing.ASSUMED]),
        ("Not used", [f"{other.accountant}: {other.reason}" for other in bound.passed_over]),
    ]
    return Section(title="Why this ε holds", parts=[Facts(rows=rows)])


# The total amount of noise.


def _tan_sections(outlook: TanOutlook) -> Iterator[Section]:
    sentences: list[Part] = [Paragraph(sentence) for sentence in tan_sentences(outlook)]
    yield Section(title="Total amount of noise", parts=[*sentences, Facts(rows=tan_facts(outlook.standing))])
    yield from map(figure, tan_charts(outlook))
    text = "Other batches and other steps cost no more ε than the plan. Every ε is tight, and noise is rounded up."
    yield Section(title="Alternatives", parts=[note(text), *tan_tables(outlook)])


def tan_facts(standing: TanAnalysis) -> list[tuple[str, str]]:
    """The numbers of a plan, by name."""
    total = standing.total
    wall = "none found at this η and these steps"
    if standing.wall is not None:
        side = "clear of it" if standing.is_clear_of_wall else "behind it"
        wall = f"below a noise multiplier of {standing.wall:.3g}; the plan is {side}"
    return [
        ("η of a step", f"{total.eta_step:.4g}"),
        ("η of the run", f"{total.eta:.4g}"),
        ("total noise, 1/η", f"{total.total_noise:.4g}"),
        ("ε, tight", f"{at_most(standing.epsilon)}, by {standing.accountant}; this one decides"),
        ("ε from η alone", f"{standing.epsilon_estimate:.4g}, {AN_ESTIMATE}; {_off(standing.estimate_off)}"),
        ("ε by rdp-balle20", f"{at_most(standing.epsilon_balle20)}, as in the paper; {_off(standing.balle20_off)}"),
        ("least ε at this η", f"{at_most(standing.epsilon_limit)}, with full batches and much noise"),
        ("privacy wall", wall),
        (
            "signal q·√steps/σ",
            f"{total.signal:.4g}, {standing.share_of_ceiling:.1%} of the {standing.ceiling:.4g} that this ε allows",
        ),
    ]


def tan_sentences(outlook: TanOutlook) -> Iterator[str]:
    """Whether η alone determines ε, where the privacy wall is, and which settings are worth trying."""
    standing = outlook.standing
    sigma = noise_text(standing.noise_multiplier)
    numbers = f"η alone gives ε ≈ {standing.epsilon_estimate:.4g} ({AN_ESTIMATE}); tight: {at_most(standing.epsilon)}."
    if standing.is_estimate_fair:
        yield f"At a noise multiplier of {sigma}, ε depends on little but η. {numbers}"
    else:
        yield f"A noise multiplier of {sigma} is below {FAIR_FROM:g}, where ε no longer follows from η. {numbers}"
    paid = f"ε is {standing.above_limit:.1%} above the least at its η, {at_most(standing.epsilon_limit)}"
    if standing.wall is None:
        yield f"No privacy wall is found at this η and these steps; the plan's {paid}."
    else:
        side = "clear of" if standing.is_clear_of_wall else "behind"
        yield (
            f"At this η and these steps the privacy wall begins below a noise multiplier of {standing.wall:.3g}, where "
            f"ε is {standing.tolerance:.0%} above that of much larger noise. The plan is {side} it: its {paid}."
        )
    yield _larger_batch(outlook)
    yield from _cheaper(outlook)
    for row in outlook.twice_the_data[:1]:
        yield f"Twice the records with the same batch, noise and steps cost ε = {at_most(row.epsilon)} at half the δ."


def _larger_batch(outlook: TanOutlook) -> str:
    best = best_for_its_cost(outlook.other_batches)
    reached = f"The plan has {outlook.standing.share_of_ceiling:.1%} of the largest signal that this ε allows"
    if best is None:
        return f"{reached}; a larger batch brings no more."
    offer = (
        f"a batch of {_batch(best)} with a noise multiplier of {noise_text(best.noise_multiplier)} has "
        f"{best.signal_gain:.1%} more at {best.cost_factor:.3g} times the cost"
    )
    if best.signal_gain < LITTLE:
        return f"{reached}; larger batches gain little: {offer}."
    return f"{reached}. The most signal for its cost: {offer}."


def _cheaper(outlook: TanOutlook) -> Iterator[str]:
    batch = cheapest_nearly_as_good(outlook.other_batches)
    if batch is not None:
        yield (
            f"Cheaper and nearly as good: a batch of {_batch(batch)} with a noise multiplier of "
            f"{noise_text(batch.noise_multiplier)} loses {-batch.signal_gain:.1%} of the signal at "
            f"{batch.cost_factor:.3g} times the cost."
        )
    fewer = [row for row in outlook.other_steps if row.cost_factor < 1]
    for row in fewer[-1:]:
        lost = f"loses {-row.signal_gain:.1%} of the signal" if row.signal_gain < 0 else "loses no signal"
        yield (
            f"{_steps(row.steps)} with a batch of {_batch(row)}, a noise multiplier of "
            f"{noise_text(row.noise_multiplier)} and {row.learning_rate_factor:.3g} times the learning rate cost "
            f"{row.cost_factor:.3g} times as much and {lost}. A simulation can show whether so few steps are enough."
        )


def tan_tables(outlook: TanOutlook) -> list[Table]:
    """The alternatives: other batches, other steps, more data. A table without rows is left out."""
    best, nearly = best_for_its_cost(outlook.other_batches), cheapest_nearly_as_good(outlook.other_batches)
    remarks = {id(best): "most for its cost", id(nearly): "nearly as good"}
    batches = [
        (
            _batch(row),
            noise_text(row.noise_multiplier),
            at_most(row.epsilon),
            f"{row.signal:.3f}" if row.signal >= 0.1 else f"{row.signal:.3g}",
            "" if row.is_plan else f"{row.signal_gain:+.1%}",
            f"× {row.cost_factor:.3g}",
            ", ".join(
                filter(
                    None,
                    ("your plan" if row.is_plan else remarks.get(id(row)), "behind the wall" * row.is_behind_wall),
                )
            ),
        )
        for row in outlook.other_batches
    ]
    steps = [
        (
            _batch(row),
            f"{row.steps:,}",
            noise_text(row.noise_multiplier),
            at_most(row.epsilon),
            f"{row.signal_gain:+.1%}",
            f"× {row.cost_factor:.3g}",
            f"× {row.learning_rate_factor:.4g}",
        )
        for row in outlook.other_steps
    ]
    data = [
        (
            row.keeps,
            f"{row.expected_batch_size:,.10g}",
            noise_text(row.noise_multiplier),
            at_most(row.epsilon),
            f"{row.epsilon_estimate:.4g}",
            f"× {row.cost_factor:.3g}",
        )
        for row in outlook.twice_the_data
    ]
    found = (
        Table(
            title="Other batches, same steps, same ε",
            headings=("batch", "noise", "ε ≤", "signal", "gain", "cost", ""),
            rows=batches,
            numeric=(True,) * 6 + (False,),
            has_heading=True,
            highlighted=next((place for place, row in enumerate(outlook.other_batches) if row.is_plan), None),
            notes=[
                "The cost is the number of gradients, batch times steps. Behind the wall, ε is more than a tenth above "
                "the least at the same η."
            ],
        ),
        Table(
            title="Other steps at nearly the same η, same ε",
            headings=("batch", "steps", "noise", "ε ≤", "gain", "cost", "learning rate"),
            rows=steps,
            numeric=(True,) * 7,
            has_heading=True,
            notes=["The learning rate is multiplied by one over the factor of the steps."],
        ),
        Table(
            title="Twice the records, half the δ",
            headings=("kept", "batch", "noise", "ε ≤", "from η", "cost"),
            rows=data,
            numeric=(False,) + (True,) * 5,
            has_heading=True,
            notes=[f"Twice the batch on twice the records keeps η. The ε from η alone is {AN_ESTIMATE}."],
        ),
    )
    return [table for table in found if table.rows]


def noise_text(value: float) -> str:
    """A noise multiplier in five digits, rounded up, so that the ε beside it holds."""
    return f"{rounded_up(value, digits=5):.5g}"


def tan_charts(outlook: TanOutlook) -> Iterator[Chart]:
    """The figures that the outlook has numbers for."""
    if outlook.curves:
        title = "ε against the noise multiplier at this η"
        lines = [*_eta_lines(outlook)]
        yield _tan_chart("constant-eta", title, "noise multiplier", "ε", note=CONSTANT_ETA, lines=lines)
    if outlook.ratio_curves:
        lines = [*_ratio_lines(outlook)]
        title, y_title = "Where ε stops following η", "divergence / (α·η²)"
        yield _tan_chart("divergence-ratio", title, "Rényi order α", y_title, note=RATIO, lines=lines)


def draw_constant_eta(outlook: TanOutlook, *, width: int) -> str:
    """ε against the noise multiplier for the plan's own steps, for a terminal."""
    if not any(curve.is_of_plan for curve in outlook.curves):
        return "No chart: at this η no other noise multiplier can be sampled."
    standing = outlook.standing
    top = max(ABOVE_LIMIT * standing.epsilon_limit, 1.2 * standing.epsilon)
    return draw_in_terminal(next(tan_charts(outlook)), width=width, top=top)


def _tan_chart(element: str, title: str, x_title: str, y_title: str, *, note: str, lines: Sequence[Line]) -> Chart:
    return Chart(
        element=element,
        title=title,
        note=note,
        x_title=x_title,
        y_title=y_title,
        x_format="~g",
        y_format="~g",
        point="%{text}",
        has_markers=True,
        lines=tuple(lines),
        x_scale="log",
        y_scale="log",
    )


def _eta_lines(outlook: TanOutlook) -> Iterator[Line]:
    own_first = sorted(outlook.curves, key=lambda curve: (not curve.is_of_plan, curve.steps))
    standing, records = outlook.standing, outlook.plan.records
    for curve in own_first:
        batches = [point.sampling_probability * records for point in curve.points]
        yield Line(
            name=_steps(curve.steps),
            x=[point.noise_multiplier for point in curve.points],
            y=[point.epsilon for point in curve.points],
            notes=[
                f"{_steps(curve.steps)}, batch {batch:,.0f}: σ = {point.noise_multiplier:.3g}, "
                f"ε ≤ {at_most(point.epsilon)}"
                for point, batch in zip(curve.points, batches, strict=True)
            ],
        )
    for curve in own_first[:1]:
        shown = [(p.noise_multiplier, p.epsilon_balle20) for p in curve.points if p.epsilon_balle20 is not None]
        yield Line(
            name=f"{_steps(curve.steps)} by rdp-balle20, as in the paper",
            x=[noise for noise, _ in shown],
            y=[epsilon for _, epsilon in shown],
            dash="dot",
            notes=[f"by rdp-balle20: ε ≤ {at_most(epsilon)}" for _, epsilon in shown],
        )
    points = [point for curve in outlook.curves for point in curve.points]
    ends = [min(point.noise_multiplier for point in points), max(point.noise_multiplier for point in points)]
    if standing.wall is not None:
        heights = [standing.epsilon_limit, max(point.epsilon for point in points)]
        yield _reference("privacy wall", [standing.wall] * 2, heights, f"σ = {standing.wall:.3g}")
    for name, epsilon in (
        ("least ε at this η", standing.epsilon_limit),
        (f"from η alone, {AN_ESTIMATE}", standing.epsilon_estimate),
    ):
        yield _reference(name, ends, [epsilon] * 2, f"{epsilon:.4g}")
    yield Line(
        name="your plan",
        x=[standing.noise_multiplier],
        y=[standing.epsilon],
        is_mark=True,
        notes=[f"your plan: σ = {exactly(standing.noise_multiplier)}, ε ≤ {at_most(standing.epsilon)}"],
    )


def _reference(name: str, x: Sequence[float], y: Sequence[float], value: str) -> Line:
    return Line(name=name, x=x, y=y, dash="dash", notes=[f"{name}: {value}"] * 2)


def _ratio_lines(outlook: TanOutlook) -> Iterator[Line]:
    """A line for each noise multiplier, and a mark on the plan's own, at the order nearest to the one that decides."""
    for curve in outlook.ratio_curves:
        name = f"σ = {curve.noise_multiplier:.4g}{', your plan' * curve.is_of_plan}"
        pairs = zip(curve.orders, curve.ratios, strict=True)
        notes = [f"{name}, α = {order:g}: {ratio:.4g}" for order, ratio in pairs]
        yield Line(name=name, x=list(curve.orders), y=list(curve.ratios), notes=notes)
    for own in (curve for curve in outlook.ratio_curves if curve.is_of_plan):
        decides = deciding_order(outlook.plan)
        order, ratio = min(zip(own.orders, own.ratios, strict=True), key=lambda pair: abs(pair[0] - decides))
        text = f"your plan: the order that decides is about {decides:.3g}, where the ratio is {ratio:.4g}"
        yield Line(name="your plan, at the order that decides", x=[order], y=[ratio], is_mark=True, notes=[text])


def _batch(row: Proposal) -> str:
    return f"{row.expected_batch_size:,.10g}"


def _off(share: float) -> str:
    return f"{abs(share):.1%} {'above' if share >= 0 else 'below'} the tight ε"


def _steps(count: int) -> str:
    return f"{count:,} step{'s' * (count > 1)}"
