"""Several runs on one web page: what each promises, a table, and their charts laid over one another.

A run that promises nothing is called so wherever its name stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from lehr import accounting
from lehr.errors import InvalidValue
from lehr.reports import page_frame, run_charts, run_claims, run_cost, run_page
from lehr.reports.rounding import at_most, exactly
from lehr.reports.run_charts import Drawn
from lehr.reports.run_reading import RunRecord
from lehr.run_shape import PRIVATE

TEMPLATE = "compare_page.html.jinja"
MOST_RUNS = 20  # on one chart; more would be neither told apart nor fit into a page that is easily sent
MEANING = (
    "ε bounds how much more likely anything that is concluded from a model becomes because of one record: at most e^ε "
    "times, except with a probability of about δ. A smaller ε protects more. Only a proven ε is a promise."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One run in the table, every cell in words."""

    name: str
    method: str
    data: str
    declared: str
    proven: str
    published: str
    accuracy: str
    steps: str
    time: str
    state: str
    is_private: bool


def render(records: Sequence[RunRecord]) -> str:
    """The whole page. Text that comes from the runs is escaped."""
    if not 2 <= len(records) <= MOST_RUNS:
        raise InvalidValue("runs", allowed=f"2 to {MOST_RUNS} on one page", given=len(records))
    runs = named(records)
    figures = {
        "by_epsilon": [*run_charts.scores(runs, by_epsilon=True)],
        "by_steps": [*run_charts.scores(runs, by_epsilon=False, suffix="-steps")],
        "steps": [*run_charts.spent(runs)],
        "annealing": [*run_charts.acceptance(runs), *run_charts.temperature(runs)],
        "mechanism": [*run_charts.noise(runs), *run_charts.clip(runs)],
        "classes": [*run_charts.classes(runs)],
    }
    return page_frame.render(
        TEMPLATE,
        charts=[figure.chart for figure in chain.from_iterable(figures.values())],
        figures=figures,
        rows=[row(run) for run in runs],
        meaning=MEANING,
        promises=[_promise(run) for run in runs],
        warnings=[*_warnings(runs)],
        left_out=[*_left_out(runs)] if figures["by_epsilon"] else [],
        version=accounting.version(),
    )


def named(records: Sequence[RunRecord]) -> list[Drawn]:
    """The runs, no two of one name; those that promise nothing say so in theirs."""
    counts = Counter(record.run for record in records)
    plain = [record.run if counts[record.run] == 1 else f"{record.run} ({_folder(record)})" for record in records]
    seen = Counter(plain)
    names = [name if seen[name] == 1 else f"{name} {place}" for place, name in enumerate(plain, start=1)]
    pairs = enumerate(zip(records, names, strict=True))
    return [Drawn(record=record, name=name + _label(record), colour=place) for place, (record, name) in pairs]


def row(run: Drawn) -> Row:
    """A run as a row of the table."""
    record = run.record
    claim, published, last = run_page.promised(record), record.published, record.last
    return Row(
        name=run.name,
        method=record.method,
        data=str(record.config["data"].get("name") or "–"),
        declared=str(record.config["data"].get("declared", PRIVATE)),
        proven="none" if claim is None else f"{at_most(claim.epsilon)} at δ = {exactly(claim.delta)}",
        published="–" if published is None else run_claims.as_published(published),
        accuracy="–" if last is None else f"{last.accuracy:.2%} on {last.on}",
        steps=_steps(record),
        time="–" if record.minutes is None else run_cost.duration(record.minutes),
        state=record.state.value,
        is_private=claim is not None,
    )


def _folder(record: RunRecord) -> str:
    return record.directory.name or record.directory.absolute().name


def _label(record: RunRecord) -> str:
    if record.plan is not None and record.plan.simulates is not None:
        return " [simulation: no privacy]"
    return "" if run_page.promised(record) is not None else " [no privacy]"


def _steps(record: RunRecord) -> str:
    last = record.last
    accepted = f", {last.accepted:,} accepted" if last is not None and last.accepted < last.step else ""
    return f"{record.steps_charged:,}{accepted}"


def _promise(run: Drawn) -> str:
    claim = run_page.promised(run.record)
    if claim is None:
        return f"{run.name}: nothing is promised to anybody: {run.record.no_privacy_because}."
    whole = " for the whole search that it was chosen by" if run.record.trial_of is not None else ""
    stated = run.record.config["stated"]
    unit = str(stated.get("unit_of_privacy", "one record"))
    certified = "of the plan, not certified" if run_page.is_uncertified(run.record) else "certified"
    public = "; ".join(map(str, stated.get("treated_as_public") or ())) or "nothing was stated"
    return (
        f"{run.name}: ε = {at_most(claim.epsilon)} at δ = {exactly(claim.delta)}{whole}, {claim.kind} ({certified}), "
        f"for {unit}, {claim.adjacency.value}. Treated as public: {public}."
    )


def _warnings(runs: Sequence[Drawn]) -> Iterator[str]:
    """What makes runs hard to compare."""
    claims = [claim for run in runs if (claim := run_page.promised(run.record)) is not None]
    deltas = sorted({claim.delta for claim in claims})
    if len(deltas) > 1:
        yield f"The ε of these runs are at different δ ({', '.join(map(exactly, deltas))}): they do not mean the same."
    if len({claim.adjacency for claim in claims}) > 1:
        yield "Neighbours of a data set are not the same for all of these runs, so that their ε do not mean the same."
    names = sorted({str(run.record.config["data"].get("name")) for run in runs})
    if len(names) > 1:
        yield f"These runs were trained on different data: {', '.join(names)}."
    places = sorted({place for run in runs for place in run.places})
    if len(places) > 1:
        yield f"They were evaluated on different records: {', '.join(places)}."


def _left_out(runs: Sequence[Drawn]) -> Iterator[str]:
    """The runs that have no place on a chart against ε, and why."""
    for run in runs:
        if not run.has_epsilon:
            yield f"{run.name}: {_why_not(run.record)}"


def _why_not(record: RunRecord) -> str:
    if not record.evaluations:
        return "it was never evaluated"
    if record.trial_of is not None:
        return "its ε is that of a whole search"
    return "it has no ε"
