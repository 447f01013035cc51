"""Several runs on one page: the guarantee of each, a table, and their charts in common. Runs without privacy say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lehr import accounting
from lehr.certificates.guarantee import published_text
from lehr.certificates.run_reading import RunRecord
from lehr.errors import InvalidValue
from lehr.planning.plan import PRIVATE
from lehr.reports import run_charts
from lehr.reports.page import Page, Paragraph, Section, Table, figure, note, render_page, warning
from lehr.reports.run_charts import ChartedRun
from lehr.reports.run_page import duration_text, is_uncertified, promised
from lehr.rounding import at_most, exactly

MOST_RUNS = 20  # on one chart
MEANING = (
    "Because of one record, anything concluded from a model becomes at most e^ε times as likely, except with a "
    "probability of about δ. A smaller ε protects more. Only a proven ε is a guarantee."
)
HEADINGS = (
    "Run",
    "Method",
    "Data",
    "Declared",
    "ε, proven",
    "ε as published",
    "Accuracy",
    "Steps taken",
    "Time",
    "State",
)


def render(records: Sequence[RunRecord]) -> str:
    """The page of 2 to 20 runs."""
    if not 2 <= len(records) <= MOST_RUNS:
        raise InvalidValue("runs", allowed=f"2 to {MOST_RUNS} on one page", given=len(records))
    runs = named(records)
    by_epsilon = [figure(chart) for chart in run_charts.scores(runs, by_epsilon=True)]
    others = [f"{run.name}: {_why_no_epsilon(run.record)}" for run in runs if not run.has_epsilon]
    left_out = [note(f"Not on the charts against ε: {'; '.join(others)}.")] if by_epsilon and others else []
    table = Table(title="The runs", headings=HEADINGS, rows=[row(run) for run in runs], style="cards")
    guarantees = [Paragraph(_guarantee(run)) for run in runs]
    charts = (
        run_charts.scores(runs, by_epsilon=False, suffix="-steps"),
        run_charts.spent(runs),
        (*run_charts.acceptance(runs), *run_charts.temperature(runs)),
        (*run_charts.noise(runs), *run_charts.clip(runs)),
        run_charts.classes(runs),
    )
    return render_page(
        Page(
            title=f"{len(runs)} runs compared",
            heading=f"{len(runs)} runs compared",
            width="wide",
            introduction=[Paragraph(MEANING), *map(warning, _warnings(runs))],
            blocks=[
                Section(title="Guarantees", parts=[*guarantees, *left_out]),
                by_epsilon,
                Section(title="The runs", parts=[table], is_long=True),
                *([*map(figure, group)] for group in charts),
            ],
            footer=f"Computed by {accounting.version()}.",
        )
    )


def named(records: Sequence[RunRecord]) -> list[ChartedRun]:
    """The runs with distinct names; those without privacy have that in their name."""
    counts = Counter(record.run for record in records)
    plain = [record.run if counts[record.run] == 1 else f"{record.run} ({_folder(record)})" for record in records]
    seen = Counter(plain)
    names = [name if seen[name] == 1 else f"{name} {number}" for number, name in enumerate(plain, start=1)]
    pairs = enumerate(zip(records, names, strict=True))
    return [ChartedRun(record=record, name=name + _label(record), colour=number) for number, (record, name) in pairs]


def row(run: ChartedRun) -> tuple[str, ...]:
    """The row of the table, by ``HEADINGS``."""
    record = run.record
    claim, published, last = promised(record), record.published, record.last
    accepted = f", {last.accepted:,} accepted" if last is not None and last.accepted < last.step else ""
    return (
        run.name,
        record.method,
        str(record.config["data"].get("name") or "–"),
        str(record.config["data"].get("declared", PRIVATE)),
        "none" if claim is None else f"{at_most(claim.epsilon)} at δ = {exactly(claim.delta)}",
        "–" if published is None else published_text(published),
        "–" if last is None else f"{last.accuracy:.2%} on {last.on}",
        f"{record.steps_charged:,}{accepted}",
        "–" if record.minutes is None else duration_text(record.minutes),
        record.state.value,
    )


def _folder(record: RunRecord) -> str:
    return record.directory.name or record.directory.absolute().name


def _label(record: RunRecord) -> str:
    if record.plan is not None and record.plan.simulates is not None:
        return " [simulation: no privacy]"
    return "" if promised(record) is not None else " [no privacy]"


def _guarantee(run: ChartedRun) -> str:
    claim = promised(run.record)
    if claim is None:
        return f"{run.name}: no guarantee: {run.record.no_privacy_because}."
    whole = " for the whole search that it was chosen by" if run.record.trial_of is not None else ""
    stated = run.record.config["stated"]
    unit = str(stated.get("unit_of_privacy", "one record"))
    certified = "of the plan, not certified" if is_uncertified(run.record) else "certified"
    public = "; ".join(map(str, stated.get("treated_as_public") or ())) or "nothing was stated"
    return (
        f"{run.name}: ε = {at_most(claim.epsilon)} at δ = {exactly(claim.delta)}{whole}, {claim.kind} ({certified}), "
        f"for {unit}, {claim.adjacency.value}. Treated as public: {public}."
    )


def _warnings(runs: Sequence[ChartedRun]) -> Iterator[str]:
    """What makes the runs hard to compare."""
    claims = [claim for run in runs if (claim := promised(run.record)) is not None]
    deltas = sorted({claim.delta for claim in claims})
    if len(deltas) > 1:
        yield f"These runs have different δ ({', '.join(map(exactly, deltas))}): their ε are not comparable."
    if len({claim.adjacency for claim in claims}) > 1:
        yield "These runs have different adjacency relations: their ε are not comparable."
    names = sorted({str(run.record.config["data"].get("name")) for run in runs})
    if len(names) > 1:
        yield f"These runs were trained on different data: {', '.join(names)}."
    evaluated = sorted({on for run in runs for on in run.evaluated_on})
    if len(evaluated) > 1:
        yield f"They were evaluated on different records: {', '.join(evaluated)}."


def _why_no_epsilon(record: RunRecord) -> str:
    if not record.evaluations:
        return "it was never evaluated"
    return "its ε is that of a whole search" if record.trial_of is not None else "it has no ε"
