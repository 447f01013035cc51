"""The page of a run, and one page for several runs. Both are made from public values only.

claim_of, is_uncertified    what a run guarantees, and whether its certificate says so
render                      a run: its guarantee, scores, audit, configuration and cost, also while it goes on
render_comparison           several runs: the guarantee of each, a table, and their charts in common
ChartRun                    a run on charts, and at the end of the file the charts
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lehr import accounting
from lehr.accounting.claims import Claim
from lehr.certificates.certificate import how_chosen
from lehr.certificates.guarantee import best_guess_text, guarantee_text, published_text
from lehr.certificates.run_reading import RunRecord, State
from lehr.errors import InvalidValue
from lehr.planning.budget import FILTER
from lehr.planning.plan import PRIVATE, SECTIONS
from lehr.reports import audit_page, prediction_page
from lehr.reports.chart import Chart, Line, thin
from lehr.reports.page import Block, Facts, Page, Paragraph, Section, Table, note, render_page, warning
from lehr.reports.plan_page import claim_facts
from lehr.reports.prediction_page import PredictionOutcome
from lehr.rounding import at_most, exactly, rounded_up
from lehr.run.shape import Evaluation

COST = "How many records a step drew is private: records are expected ones, and times are in whole minutes."
_SAME_TO = 1e-6  # ε, computed again on another machine
_LONG = ("trained", "frozen")  # the shapes of all weights


def claim_of(record: RunRecord) -> Claim | None:
    """The claim of the certificate, or that of the plan while there is none; None where nothing is guaranteed."""
    if not record.is_private:  # whatever certificate lies in its folder
        return None
    return record.proven if is_uncertified(record) or record.certificate is None else record.certificate.claim


def is_uncertified(record: RunRecord) -> bool:
    """Whether there is no certificate, or one that promises more than the run can: that of another run."""
    if record.certificate is None:
        return True
    own, certified = record.proven, record.certificate.claim
    if own is None or (certified.delta, certified.adjacency) != (own.delta, own.adjacency):
        return True
    return certified.epsilon < own.epsilon * (1 - _SAME_TO)


# One run.


def render(record: RunRecord, *, outcome: PredictionOutcome | None = None) -> str:
    """The page, with the outcome of a prediction where one is given."""
    claim, run = claim_of(record), ChartRun(record=record)
    believed = replace(record, certificate=None) if is_uncertified(record) else record
    headline, small = "No privacy", ""
    blocks: list[Block | Sequence[Block]] = [
        _scores([run], by_epsilon=run.has_epsilon),
        Section(title="How it went", parts=[Facts(rows=[*_progress_facts(believed)]), note(COST)]),
        _over_steps([run]),
    ]
    if outcome is not None:
        blocks.append(prediction_page.section(outcome))
    if record.audit is not None:
        blocks += audit_page.sections(record.audit, title="Audit")
    blocks.append(_classes([run]))
    if claim is not None:
        headline, small = f"ε = {at_most(claim.epsilon)}", f"at δ = {exactly(claim.delta)}, {claim.kind}"
        blocks.append(Section(title="How ε was computed", parts=[Facts(rows=[*claim_facts(claim)])], is_long=True))
    blocks.append(_configuration(record))
    version, begun = record.config.get("library_version", ""), record.config.get("created_on", "")
    return render_page(
        Page(
            title=f"{record.run}: " + ("no privacy" if claim is None else f"{claim.kind} {headline}"),
            heading=f"Training run: {record.run}",
            headline=headline,
            small=small,
            state=record.state.value.capitalize(),
            introduction=[*_guarantee(record, claim)],
            blocks=blocks,
            footer=f"Begun on {begun} with Lehr {version}. Computed by {accounting.version()}.",
        )
    )


def _guarantee(record: RunRecord, claim: Claim | None) -> Iterator[Paragraph]:
    if (published := record.published) is not None:
        show = note if published.is_proven else warning
        yield show(f"As published: ε = {published_text(published)}.")
    if claim is None:
        yield Paragraph(
            f"No privacy: {record.no_privacy_because}. The model may reveal any record that it was trained on."
        )
        return
    unit, public = _stated(record)
    yield Paragraph(guarantee_text(epsilon=claim.epsilon, delta=claim.delta, adjacency=claim.adjacency, unit=unit))
    yield note(best_guess_text(epsilon=claim.epsilon, delta=claim.delta, unit=unit))
    yield note(_kind(claim, record))
    yield note("It holds for every step that the plan allowed, however many were taken, accepted or rejected.")
    if record.trial_of is not None:
        yield note("It is for the whole search that this model was chosen by, not for this run alone.")
        yield from map(note, () if record.certificate is None else how_chosen(record.certificate))
    yield note(f"Treated as public: {public}.")
    if seen := record.config["data"].get("public_records"):
        yield note(f"Training used public records: {seen}.")


def _stated(record: RunRecord) -> tuple[str, str]:
    """The unit of privacy, and what is treated as public."""
    stated = record.config["stated"]
    public = "; ".join(map(str, stated.get("treated_as_public") or ())) or "nothing was stated"
    return str(stated.get("unit_of_privacy", "one record")), public


def _kind(claim: Claim, record: RunRecord) -> str:
    if not claim.is_proven:
        return f"This is not proven: the claim is {claim.kind}."
    if record.certificate is None:
        return "This is proven for the plan. There is no certificate yet."
    if is_uncertified(record):
        return "This is proven for the plan. The certificate in the folder states another ε: it is another run's."
    return "This is proven. Check the certificate beside this page: lehr certificate check certificate.json"


def _progress_facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    plan, last, certificate = record.plan, record.last, record.certificate
    yield "method", record.method
    planned = "" if plan is None else f" of {'' if plan.limit is None else 'at most '}{plan.steps:,} planned"
    yield "steps taken", f"{record.steps_charged:,}{planned}"
    if plan is not None and plan.stops_at_accepted is not None:
        yield "ends once", f"{plan.stops_at_accepted:,} candidates are accepted"
    if last is not None:
        if last.accepted < last.step:
            yield "candidates accepted", f"{last.accepted:,} of {last.step:,} ({last.accepted / last.step:.1%})"
        if last.accuracy is not None:
            yield "accuracy", last.accuracy_text
        yield "loss", f"{last.loss:.4f}"
        for name, value in (last.metrics or {}).items():
            yield name, "–" if value is None else f"{value:.4g}"
        yield "evaluated", f"on {last.on}, after step {last.step:,}"
    if record.state is State.STOPPED and certificate is not None and certificate.ex_post is not None:
        yield "ε ex post (no guarantee)", at_most(certificate.ex_post.epsilon)
    if plan is not None:
        expected = record.steps_charged * plan.expected_batch_size
        passes = record.steps_charged * plan.sampling_probability
        yield "records used", f"{expected:,.0f} expected, {passes:.4g} passes over the data"
    if record.minutes is not None:
        yield "time", f"{record.minutes:,} minutes, from the first charge to the last, pauses included"
    if certificate is not None and (budget := certificate.budget) is not None:
        used = f"{at_most(budget.spent_epsilon)} of {at_most(budget.epsilon)}"
        yield "budget of the records", f"{budget.dataset}: ε = {used} spent, this run included"


def _configuration(record: RunRecord) -> Section:
    plan = {} if record.plan is None else record.plan.to_json()
    shown = {"plan": plan} | {name: record.config[name] for name in (*SECTIONS, "stated")}
    parts = [
        Facts(title=name.capitalize(), rows=[row for row in _flat(settings) if name != "model" or row[0] not in _LONG])
        for name, settings in shown.items()
    ]
    return Section(title="Configuration", parts=parts, is_long=True)


def _flat(shape: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of nested settings, as text."""
    for name, value in shape.items():
        words = before + str(name).replace("_", " ")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{words}: ")
        else:
            yield words, "–" if value in (None, {}, []) else str(value)


# Several runs.

MOST_RUNS = 20  # on one chart
MEANING = (
    "Because of one record, anything concluded from a model becomes at most e^ε times as likely, except with a "
    "probability of about δ. A smaller ε protects more. Only a proven ε is a guarantee."
)


def render_comparison(records: Sequence[RunRecord]) -> str:
    """The page of 2 to 20 runs."""
    if not 2 <= len(records) <= MOST_RUNS:
        raise InvalidValue("runs", allowed=f"2 to {MOST_RUNS} on one page", given=len(records))
    runs = _named(records)
    rows = [_comparison_row(run) for run in runs]
    table = Table(title="The runs", headings=[*rows[0]], rows=[[*row.values()] for row in rows], style="cards")
    others = [run.name for run in runs if not run.has_epsilon]
    left_out = [note(f"Not on the charts against ε: {'; '.join(others)}.")] if others else []
    return render_page(
        Page(
            title=f"{len(runs)} runs compared",
            heading=f"{len(runs)} runs compared",
            width="wide",
            introduction=[Paragraph(MEANING), *map(warning, _warnings(runs))],
            blocks=[
                Section(title="The runs", parts=[table, *left_out], is_long=True),
                _scores(runs, by_epsilon=True),
                _scores(runs, by_epsilon=False, suffix="-steps"),
                _over_steps(runs),
                _classes(runs),
            ],
            footer=f"Computed by {accounting.version()}.",
        )
    )


def _named(records: Sequence[RunRecord]) -> list[ChartRun]:
    """The runs with distinct names; those without privacy have that in their name."""
    counts = Counter(record.run for record in records)
    runs = []
    for number, record in enumerate(records):
        name = record.run if counts[record.run] == 1 else f"{record.run} ({number + 1}: {record.directory.name})"
        if record.plan is not None and record.plan.simulates is not None:
            name += " [simulation: no privacy]"
        elif claim_of(record) is None:
            name += " [no privacy]"
        runs.append(ChartRun(record=record, name=name, colour=number))
    return runs


def _comparison_row(run: ChartRun) -> dict[str, str]:
    """The row of the table, by its headings."""
    record = run.record
    claim, last, data = claim_of(record), record.last, record.config["data"]
    guarantee, public = f"none: {record.no_privacy_because}", "–"
    if claim is not None:
        unit, public = _stated(record)
        whole = " for the whole search that it was chosen by" if record.trial_of is not None else ""
        certified = "of the plan, not certified" if is_uncertified(record) else "certified"
        guarantee = (
            f"ε = {at_most(claim.epsilon)} at δ = {exactly(claim.delta)}{whole}, {claim.kind} ({certified}), "
            f"for {unit}, {claim.adjacency.value}"
        )
    accepted = f", {last.accepted:,} accepted" if last is not None and last.accepted < last.step else ""
    return {
        "run": run.name,
        "guarantee": guarantee,
        "treated as public": public,
        "ε as published": "–" if record.published is None else published_text(record.published),
        "method": record.method,
        "data": f"{data.get('name') or 'unnamed'}, declared {data.get('declared', PRIVATE)}",
        "accuracy": "–" if last is None else f"{last.accuracy_text} on {last.on}",
        "steps taken": f"{record.steps_charged:,}{accepted}",
        "minutes": "–" if record.minutes is None else f"{record.minutes:,}",
        "state": record.state.value,
    }


def _warnings(runs: Sequence[ChartRun]) -> Iterator[str]:
    """What makes the runs hard to compare."""
    claims = [claim for run in runs if (claim := claim_of(run.record)) is not None]
    for text, values in (
        ("These runs have different δ: their ε are not comparable", {exactly(claim.delta) for claim in claims}),
        ("These runs have different adjacency: their ε are not comparable", {one.adjacency.value for one in claims}),
        ("These runs were trained on different data", {str(run.record.config["data"].get("name")) for run in runs}),
        ("These runs were evaluated on different records", {on for run in runs for on in run.evaluated_on}),
    ):
        if len(values) > 1:
            yield f"{text} ({', '.join(sorted(values))})."


# Charts. A chart that has nothing to show has no lines.

STEPS, EPSILON = "steps", "ε spent (proven)"
POINTS = 300  # of one chart, all lines together: the page has to stay small
FEWEST_OF_A_LINE = 12
MANY_CLASSES = 30  # more cannot be told apart on a chart, and are sorted instead
CHARGED = (
    "Each point has the ε of a run planned to end there. A run that ended early is still charged for the whole plan: "
    "the dotted line leads to that proven ε."
)
CLASSES = "Only public records are evaluated by class."


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartRun:
    """A run and its name on a chart, empty where it is the only one."""

    record: RunRecord
    name: str = ""
    colour: int | None = None  # the same on every chart

    @property
    def has_epsilon(self) -> bool:
        """Whether each evaluation has an ε that the model itself promises; a trial of a search has none."""
        rows, record = self.record.evaluations, self.record
        is_own = record.trial_of is None and record.is_private
        return is_own and bool(rows) and all(math.isfinite(row.epsilon_spent) for row in rows)

    @property
    def evaluated_on(self) -> tuple[str, ...]:
        """The names of the sets of records that the model was evaluated on."""
        return tuple(dict.fromkeys(row.on for row in self.record.evaluations))

    @property
    def charged(self) -> float | None:
        """The proven ε of a run that ended early, where that is more than it had spent.

        Only a budget that is kept as a filter gives back what was not used.
        """
        record = self.record
        is_filtered = record.certificate is not None and record.certificate.claim.accountant == FILTER
        ended_early = record.state in (State.ACCEPTED, State.STOPPED) and not is_filtered
        if not (self.has_epsilon and ended_early) or record.proven is None:
            return None
        epsilon = rounded_up(record.proven.epsilon, digits=5)
        return epsilon if epsilon > record.evaluations[-1].epsilon_spent else None

    def line(self, name: str, points: Sequence[tuple[float, float]], **style: Any) -> Line:
        """A line in the colour of the run; numbers have six digits, which keeps the page small."""
        xs, ys = [x for x, _ in points], [float(f"{y:.6g}") for _, y in points]
        return Line(name=name, x=xs, y=ys, **{"colour": self.colour, **style})


def _scores(runs: Sequence[ChartRun], *, by_epsilon: bool, suffix: str = "") -> list[Chart]:
    """Accuracy and loss, against ε or against steps; a line for each run and set of records."""
    charts = []
    for name, y_format in (("accuracy", ".0%"), ("loss", "")):
        lines, charged = [], []
        for run in runs if not by_epsilon else [run for run in runs if run.has_epsilon]:
            for number, on in enumerate(run.evaluated_on):
                rows = [row for row in run.record.evaluations if row.on == on and getattr(row, name) is not None]
                if not rows:
                    continue
                title = ", ".join(filter(None, (run.name, on if len(run.evaluated_on) > 1 or not run.name else "")))
                points = [(_epsilon(row) if by_epsilon else row.step, getattr(row, name)) for row in rows]
                lines.append(run.line(title, points))
                if by_epsilon and run.charged is not None:
                    colour = number if run.colour is None else run.colour
                    ends = [points[-1], (run.charged, points[-1][1])]
                    charged.append(run.line(f"{title}, charged", ends, dash="dot", colour=colour))
        if not lines and any(run.evaluated_on for run in runs):  # a regression has no accuracy
            continue
        x_title = EPSILON if by_epsilon else STEPS
        charts.append(
            _chart(
                name + suffix,
                f"{name.capitalize()} against {x_title}",
                runs,
                [*lines, *charged],
                y_title=name,
                y_format=y_format,
                x_title=x_title,
                note=CHARGED if charged else "",
            )
        )
    return charts


def _epsilon(row: Evaluation) -> float:
    return rounded_up(row.epsilon_spent, digits=5)  # still a bound in the digits that are shown


class _Series(NamedTuple):
    """One number of each evaluation, against steps; None is left out."""

    title: str
    y_title: str
    value: Callable[[Evaluation], float | None]
    note: str
    is_of: Callable[[ChartRun], bool] = lambda run: True
    y_format: str = ""


_SERIES = {
    "spent": _Series(
        title="ε spent against steps",
        y_title=EPSILON,
        value=_epsilon,
        note="The ε spent after a step is that of a run planned to end there. A run that stops early because of what "
        "it saw is still charged for all of its planned steps.",
        is_of=lambda run: run.has_epsilon,
    ),
    "acceptance": _Series(
        title="Share of candidates accepted",
        y_title="accepted",
        value=lambda row: row.accepted / row.step if row.step else None,
        note="A rejected candidate is charged like every other.",
        is_of=lambda run: any(row.accepted < row.step for row in run.record.evaluations),
        y_format=".0%",
    ),
    "noise": _Series(
        title="Noise multiplier",
        y_title="noise multiplier",
        value=lambda row: row.noise_multiplier,
        note="The noise over the sensitivity of a sum. It is public: planned, or computed from released values.",
    ),
    "clip": _Series(
        title="Clip norm",
        y_title="clip norm",
        value=lambda row: row.clip_norm,
        note="The sensitivity that the noise is scaled by. It is public: scheduled, or computed from released values.",
    ),
}


def _over_steps(runs: Sequence[ChartRun]) -> list[Chart]:
    """ε, acceptance, noise and clip norm against steps, as far as the runs have them."""
    charts = []
    for element, series in _SERIES.items():
        lines = []
        for run in filter(series.is_of, runs):
            by_step = {row.step: series.value(row) for row in run.record.evaluations}
            points = [(step, number) for step, number in by_step.items() if number is not None]
            lines += [run.line(run.name or series.y_title, points)] if points else []
        style = {"y_title": series.y_title, "y_format": series.y_format, "note": series.note, "from_zero": True}
        charts.append(_chart(element, series.title, runs, lines, **style))
    return charts


def _classes(runs: Sequence[ChartRun]) -> Chart:
    """The accuracy of each class at the last evaluation that has it."""
    shares_of = []
    for run in runs:
        rows = [row.accuracy_by_class for row in run.record.evaluations if row.accuracy_by_class]
        if rows and any(share is not None for share in rows[-1]):
            shares_of.append((run, [math.nan if share is None else share for share in rows[-1]]))
    most = max((len(shares) for _, shares in shares_of), default=0)
    style: dict[str, Any] = {"x_title": "class", "x_ticks": tuple(map(float, range(most)))}
    if is_sorted := most > MANY_CLASSES:
        shares_of = [(run, sorted(share for share in shares if math.isfinite(share))) for run, shares in shares_of]
        style = {"x_title": "classes, from the worst to the best"}
    lines = [run.line(run.name or "accuracy", [*enumerate(shares)], is_bars=not is_sorted) for run, shares in shares_of]
    title = "Accuracy of each class"
    return _chart(
        "classes", title, runs, lines, y_title="accuracy", y_format=".0%", note=CLASSES, from_zero=True, **style
    )


def _chart(element: str, title: str, runs: Sequence[ChartRun], lines: Sequence[Line], **style: Any) -> Chart:
    """The chart, with thin lines."""
    most = max(FEWEST_OF_A_LINE, POINTS // max(1, len(lines)))
    style = {"x_title": STEPS, "x_format": "" if style.get("x_title") == EPSILON else ",d", **style}
    return Chart(
        element=element,
        title=title,
        lines=tuple(replace(line, x=thin(line.x, most=most), y=thin(line.y, most=most)) for line in lines),
        has_markers=True,
        names_lines=len(runs) > 1,
        **style,
    )
