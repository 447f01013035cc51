"""The page of a run, from public values only: its guarantee, its scores, its audit, its configuration and its cost.

It can be made while the run goes on, and says how far the run is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from lehr import accounting
from lehr.accounting.claims import Claim, Standing
from lehr.certificates.certificate import how_chosen
from lehr.certificates.guarantee import best_guess_text, guarantee_text, why_not_proven
from lehr.certificates.run_reading import RunRecord, State
from lehr.errors import AccountantFailed, InvalidValue
from lehr.planning.plan import SECTIONS, Plan
from lehr.planning.simulation import Prediction
from lehr.planning.tan import TanOutlook, analyse, eta_curves
from lehr.reports import audit_page, prediction_page, run_charts
from lehr.reports.chart import Chart, thinned
from lehr.reports.page import Facts, Page, Paragraph, Section, Table, figure, note, render_page, warning
from lehr.reports.plan_page import tan_charts, tan_facts
from lehr.reports.run_charts import ChartedRun
from lehr.rounding import at_most, exactly

MILESTONES = 20  # rows of the table of evaluations
ACCURACY_MILESTONES = (0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
MOST_MILESTONES = 4
SIMULATED = " This is the plan that the run simulates; the run itself protects nobody."
COST = "How many records a step drew is private: records are expected ones, and times are in whole minutes."

_SAME_TO = 1e-6  # ε, computed again on another machine
_LONG = ("trained", "frozen")  # the shapes of all weights


class Position(NamedTuple):
    """Where a plan stands by its total amount of noise: the chart and the numbers."""

    chart: Chart
    facts: list[tuple[str, str]]

    @property
    def section(self) -> Section:
        return Section(title="Total amount of noise", parts=[Facts(rows=self.facts)])


def render(record: RunRecord, *, prediction: Prediction | None = None, position: Position | None = None) -> str:
    """The page, with a prediction and the position of the plan where these are given."""
    claim, run = promised(record), ChartedRun(record=record)
    believed = replace(record, certificate=None) if is_uncertified(record) else record
    headline, small = "No privacy", ""
    if claim is not None:
        headline, small = f"ε = {at_most(claim.epsilon)}", f"at δ = {exactly(claim.delta)}, {claim.kind}"
    version, begun = record.config.get("library_version", ""), record.config.get("created_on", "")
    return render_page(
        Page(
            title=f"{record.run}: " + ("no privacy" if claim is None else f"{claim.kind} ε = {at_most(claim.epsilon)}"),
            heading=f"Training run: {record.run}",
            headline=headline,
            small=small,
            state=record.state.value.capitalize(),
            is_open=record.state not in (State.COMPLETED, State.ACCEPTED, State.SPENT),
            introduction=[*_published(record), *_guarantee(record, claim)],
            blocks=[
                _figures(run_charts.scores([run], by_epsilon=run.has_epsilon)),
                Section(title="How it went", parts=[Facts(rows=[*_progress_rows(believed)], are_numbers=True)]),
                _figures(run_charts.spent([run])),
                _figures(run_charts.acceptance([run]), run_charts.temperature([run])),
                _figures(run_charts.noise([run]), run_charts.clip([run])),
                *([] if position is None else [figure(position.chart), position.section]),
                *([] if prediction is None else [prediction_page.section(prediction, record)]),
                *([] if record.audit is None else audit_page.sections(record.audit, title="Audit")),
                _figures(run_charts.classes([run])),
                _evaluations(record, run, has_spent=claim is not None and record.trial_of is None),
                [] if claim is None else [_accounting(claim, believed)],
                _configuration(record),
                [Section(title="Cost", parts=[Facts(rows=costs), note(COST)])]
                if (costs := [*cost_rows(believed)])
                else [],
            ],
            footer=f"Begun on {begun} with Lehr {version}. Computed by {accounting.version()}.",
        )
    )


def promised(record: RunRecord) -> Claim | None:
    """The claim of the certificate, or that of the plan while there is none; None where nothing is guaranteed."""
    if not record.is_private:  # whatever certificate lies in its folder
        return None
    return record.proven if is_uncertified(record) or record.certificate is None else record.certificate.claim


def is_uncertified(record: RunRecord) -> bool:
    """Whether there is no certificate, or one that promises more than the run can: that of another run."""
    if record.certificate is None:
        return True
    own, given = record.proven, record.certificate.claim
    if own is None or (given.delta, given.adjacency) != (own.delta, own.adjacency):
        return True
    return given.epsilon < own.epsilon * (1 - _SAME_TO)


def duration_text(minutes: int) -> str:
    """Minutes for people.

    >>> duration_text(0), duration_text(1), duration_text(59), duration_text(150)
    ('less than a minute', '1 minute', '59 minutes', '2 h 30 min')
    """
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"{minutes} minute{'s' * (minutes > 1)}"
    return f"{minutes // 60:,} h {minutes % 60} min"


def position(record: RunRecord) -> Position | None:
    """Where the plan of the run, or the one that it simulates, stands; None where that says nothing. Takes seconds."""
    plan = record.plan
    if plan is None or (not record.is_private and plan.simulates is None):
        return None
    outlook = _outlook(plan.simulates or plan)
    chart = None if outlook is None else next(tan_charts(outlook), None)
    if outlook is None or chart is None:
        return None
    text = chart.note + (SIMULATED if plan.simulates is not None else "")
    titled = replace(chart, title="Where the plan stands: ε against noise at the same η", note=text)
    return Position(chart=titled, facts=tan_facts(outlook.standing))


@lru_cache(maxsize=64)  # a page that is asked for again while a run goes on has the same plan
def _outlook(plan: Plan) -> TanOutlook | None:
    try:
        standing, curves = analyse(plan), tuple(eta_curves(plan, step_factors=(1.0,)))
    except (InvalidValue, AccountantFailed):  # steps that differ, replace-one adjacency, or no ε to compare
        return None
    return TanOutlook(plan=plan, standing=standing, other_batches=(), other_steps=(), twice_the_data=(), curves=curves)


def _figures(*charts: Iterator[Chart]) -> list[Section]:
    return [figure(chart) for group in charts for chart in group]


def _published(record: RunRecord) -> Iterator[Paragraph]:
    claim = record.published
    if claim is None:
        return
    text = f"As published: ε = {at_most(claim.epsilon)} at δ = {exactly(claim.delta)}, by {claim.theorem}."
    if because := why_not_proven(claim):
        yield warning(f"{text} This is not a guarantee: {because}.")
    else:
        yield note(f"{text} This rule is proven too, and less tight.")


def _guarantee(record: RunRecord, claim: Claim | None) -> Iterator[Paragraph]:
    if claim is None:
        yield Paragraph(
            f"No privacy: {record.no_privacy_because}. The model may reveal any record that it was trained on."
        )
        return
    stated = record.config["stated"]
    unit = str(stated.get("unit_of_privacy", "one record"))
    yield Paragraph(guarantee_text(epsilon=claim.epsilon, delta=claim.delta, adjacency=claim.adjacency, unit=unit))
    yield note(best_guess_text(epsilon=claim.epsilon, delta=claim.delta, unit=unit))
    yield note(_kind(claim, record))
    yield note("It holds for every step that the plan allowed, however many were taken, accepted or rejected.")
    if record.trial_of is not None:
        yield note("It is for the whole search that this model was chosen by, not for this run alone.")
        yield from map(note, () if record.certificate is None else how_chosen(record.certificate))
    public = "; ".join(map(str, stated.get("treated_as_public") or ())) or "nothing was stated"
    yield note(f"Treated as public: {public}.")
    if seen := record.config["data"].get("public_records"):
        yield note(f"Training used public records: {seen}.")


def _kind(claim: Claim, record: RunRecord) -> str:
    if not claim.is_proven:
        return f"This is not proven: the claim is {claim.kind}."
    if record.certificate is None:
        return "This is proven for the plan. There is no certificate yet."
    if is_uncertified(record):
        return "This is proven for the plan. The certificate in the folder states another ε: it is another run's."
    return "This is proven. Check the certificate beside this page: lehr certificate check certificate.json"


def _progress_rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    plan, last = record.plan, record.last
    yield "State", record.state.value
    yield "Method", record.method
    if plan is None:
        yield "Steps", f"{record.steps_charged:,}"
    else:
        most = f"{plan.steps:,}" if plan.limit is None else f"at most {plan.steps:,}"
        yield "Steps taken", f"{record.steps_charged:,} of {most} planned"
    enough = None if plan is None else plan.stops_at_accepted
    if enough is not None:
        yield "Ends once", f"{enough:,} candidates are accepted"
    if last is not None:
        if last.step and (run_charts.can_reject(record) or enough is not None):
            yield "Candidates accepted", f"{last.accepted:,} of {last.step:,} ({last.accepted / last.step:.1%})"
        yield "Accuracy", f"{last.accuracy:.2%}"
        yield "Loss", f"{last.loss:.4f}"
        yield "Evaluated", f"on {last.on}, after step {last.step:,}"
    if record.state is State.STOPPED and record.certificate is not None and record.certificate.ex_post is not None:
        yield "ε ex post (no guarantee)", at_most(record.certificate.ex_post.epsilon)


def _evaluations(record: RunRecord, run: ChartedRun, *, has_spent: bool) -> list[Section]:
    rows, several = thinned(record.evaluations, most=MILESTONES), len(run.evaluated_on) > 1
    if not rows:
        return []
    title = "Evaluations" if several else f"Evaluations on {run.evaluated_on[0]}"
    headings = ["Step", *(["ε ≤"] if has_spent else []), "Accuracy", "Loss"]
    few = f"{len(rows)} of {len(record.evaluations):,}, evenly spread."
    table = Table(
        title=title,
        headings=[*headings, *(["On"] if several else [])],
        rows=[
            (
                f"{row.step:,}",
                *((at_most(row.epsilon_spent),) if has_spent else ()),
                f"{row.accuracy:.2%}",
                f"{row.loss:.4f}",
                *((row.on,) if several else ()),
            )
            for row in rows
        ],
        numeric=[True] * len(headings) + [False] * several,
        notes=[few] if len(rows) < len(record.evaluations) else (),
    )
    return [Section(title=title, parts=[table])]


def _accounting(claim: Claim, record: RunRecord) -> Section:
    others = () if record.certificate is None else record.certificate.published_claims
    rows: list[tuple[str, str | Sequence[str]]] = [
        ("Claim", claim.kind),
        ("Theorem", claim.theorem),
        ("Accountant", claim.accountant),
        ("Adjacency", claim.adjacency.value),
        *([("Proof", claim.proof)] if claim.proof else []),
        ("Assumed", [premise.statement for premise in claim.premises if premise.standing is Standing.ASSUMED]),
    ]
    if others:
        listed = [f"{one.kind}: ε = {at_most(one.epsilon)} by {one.theorem}" for one in others]
        rows.append(("Not a guarantee", listed))
    return Section(title="How ε was computed", parts=[Facts(rows=rows)], is_long=True)


def _configuration(record: RunRecord) -> Section:
    plan = {} if record.plan is None else record.plan.to_json()
    shown = {"plan": plan} | {name: record.config[name] for name in (*SECTIONS, "stated")}
    parts = [
        Facts(title=name.capitalize(), rows=rows)
        for name, settings in shown.items()
        if (rows := [(key, value) for key, value in _flat(settings) if name != "model" or key not in _LONG])
    ]
    return Section(title="Configuration", parts=parts, is_long=True)


def _flat(shape: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of nested settings, as text."""
    for name, value in shape.items():
        words = before + str(name).replace("_", " ")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{words}: ")
        else:
            yield words, _value_text(value)


def _value_text(value: object) -> str:
    match value:
        case None | {}:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return exactly(value)
        case list() | tuple():
            return ", ".join(map(_value_text, value)) or "–"
        case _:
            return str(value)


def cost_rows(record: RunRecord) -> Iterator[tuple[str, str]]:
    """Time, expected records, and ε for what was reached. From public values only."""
    plan, steps, last = record.plan, record.steps_charged, record.last
    if record.minutes is not None:
        yield "Time", f"{duration_text(record.minutes)}, from the first charge to the last, pauses included"
    if plan is not None and steps:
        expected = steps * plan.expected_batch_size
        yield "Records used", f"{expected:,.0f} expected ({steps:,} steps of {plan.expected_batch_size:,.10g})"
        yield "Passes over the data", f"{steps * plan.sampling_probability:.4g} expected"
        if record.minutes:
            yield "Steps per minute", f"{steps / record.minutes:,.4g} on average"
    parameters = record.config["model"].get("parameters")
    if isinstance(parameters, int):
        yield "Trained parameters", f"{parameters:,}"
    if ChartedRun(record=record).has_epsilon and plan is not None and last is not None and last.step:
        each = last.epsilon_spent / last.step
        yield "ε per 100 steps", f"{at_most(100 * each)} on average"
        yield "ε per pass over the data", f"{at_most(each / plan.sampling_probability)} on average"
        for accuracy, epsilon in first_reached(record):
            yield f"ε when {accuracy:.0%} was first reached", at_most(epsilon)
    if record.certificate is not None and (budget := record.certificate.budget) is not None:
        used = f"{at_most(budget.spent_epsilon)} of {at_most(budget.epsilon)}"
        yield "Budget of the records", f"{budget.dataset}: ε = {used} spent, this run included"


def first_reached(record: RunRecord) -> list[tuple[float, float]]:
    """The ε at the first evaluation with at least each accuracy, for the highest milestones that were reached."""
    found = [
        (accuracy, next((row.epsilon_spent for row in record.evaluations if row.accuracy >= accuracy), math.inf))
        for accuracy in ACCURACY_MILESTONES
    ]
    return [pair for pair in found if math.isfinite(pair[1])][-MOST_MILESTONES:]
