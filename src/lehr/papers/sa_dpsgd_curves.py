"""SA-DPSGD's Figure 3: loss and accuracy against ε, on the runs of its Tables 1 and 3."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lehr.papers.experiment import Experiment, Outcome, Outcomes, Size
from lehr.papers.job import Job
from lehr.papers.sa_dpsgd_costs import proven_on_the_way, published_epsilon
from lehr.papers.sa_dpsgd_runs import SCHEMES, Scheme, Setting, compared_runs, runs_of, settings_of, titled
from lehr.papers.table import Cell, Column, Measured, Shown, Table, measured
from lehr.reports.chart import Chart, Line

CANDIDATES, ACCEPTED, ACCURACY, LOSS = range(4)  # what a row of a trajectory has
_EPSILONS = (1.5, 2.0, 2.5, 3.0)
_POINTS = 80  # of a line; more cannot be told apart, and make a page large


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """What a line goes along: a count of each run, and what that count costs."""

    name: str
    title: str
    count: int  # its place in a row of a trajectory
    epsilon: Callable[[Setting, int], float]


_PUBLISHED = _Axis(name="published", title="published ε", count=ACCEPTED, epsilon=published_epsilon)
_PROVEN = _Axis(
    name="proven", title="proven ε of the candidates drawn so far", count=CANDIDATES, epsilon=proven_on_the_way
)


def value_at(outcome: Outcome, along: int, count: int, value: int) -> float | None:
    """What the last evaluation of a run had that was made at such a count or before it."""
    rows: Sequence[Sequence[Any]] = outcome["trajectory"]
    place = bisect_right(rows, count, key=lambda row: row[along])
    return float(rows[place - 1][value]) if place else None


def _jobs(size: Size) -> list[Job]:
    return [*compared_runs(size)]


def _shown(outcomes: Outcomes, size: Size) -> Shown:
    settings = settings_of(size)
    return Shown(
        tables=tuple(_table(setting, outcomes, size) for setting in settings),
        charts=tuple(chart for setting in settings for chart in _charts(setting, outcomes, size)),
        notes=(
            "A line is a mean over runs; each run counts with its last evaluation so far. Along the proven ε, "
            "candidates that were rejected are counted: for SA-DPSGD that is known only afterwards, and no guarantee.",
        ),
    )


def _charts(setting: Setting, outcomes: Outcomes, size: Size) -> list[Chart]:
    pairs = ((LOSS, _PUBLISHED), (ACCURACY, _PUBLISHED), (ACCURACY, _PROVEN))
    charts = [_chart(setting, value, axis, outcomes, size) for value, axis in pairs]
    return [chart for chart in charts if chart.lines]


def _chart(setting: Setting, value: int, axis: _Axis, outcomes: Outcomes, size: Size) -> Chart:
    name, form = ("accuracy", ".1%") if value == ACCURACY else ("loss", ".3g")
    lines = [_line(setting, scheme, value, axis, outcomes, size) for scheme in SCHEMES]
    return Chart(
        element=f"{setting.data}-{name}-{axis.name}",
        x_title=axis.title,
        y_title=f"{setting.title}: {name}",
        x_format="",
        y_format=".0%" if value == ACCURACY else "",
        point=f"ε %{{x:.3g}}<br>{name} %{{y:{form}}}",
        has_markers=False,
        from_zero=False,
        lines=tuple(line for line in lines if line.x),
    )


def _line(setting: Setting, scheme: Scheme, value: int, axis: _Axis, outcomes: Outcomes, size: Size) -> Line:
    found = outcomes.of_all([*runs_of(setting, scheme, size)])
    counts = [count for count in _grid(found, axis.count) if _mean(found, axis.count, count, value) is not None]
    return Line(
        name=scheme.title,
        x=[axis.epsilon(setting, count) for count in counts],
        y=[_mean(found, axis.count, count, value) or 0.0 for count in counts],
        dash="dash" if scheme.scored_on == "half" else "solid",
    )


def _grid(found: list[Outcome], along: int) -> list[int]:
    """Evenly spaced counts up to what all runs have."""
    if not found:
        return []
    last = min(outcome["trajectory"][-1][along] for outcome in found)
    return sorted({max(1, round(last * place / _POINTS)) for place in range(1, _POINTS + 1)})


def _mean(found: list[Outcome], along: int, count: int, value: int) -> float | None:
    """None until every run has been looked at."""
    values = [value_at(outcome, along, count, value) for outcome in found]
    return None if None in values else measured(values).mean


def _table(setting: Setting, outcomes: Outcomes, size: Size) -> Table:
    return Table(
        title=titled(setting, size, "accuracy in percent on the way to a published ε of 3 (SA-DPSGD, Figure 3)"),
        columns=(
            Column(title="method"),
            *(Column(title=f"at ε {epsilon:g}", kind="percent") for epsilon in _EPSILONS),
            Column(title=f"loss at ε {_EPSILONS[-1]:g}", kind="number", digits=3),
        ),
        rows=tuple(_row(setting, scheme, outcomes, size) for scheme in SCHEMES),
        notes=("Each run counts with its last evaluation before that ε.",),
    )


def _row(setting: Setting, scheme: Scheme, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    found = outcomes.of_all([*runs_of(setting, scheme, size)])

    def over_runs(epsilon: float, value: int) -> Measured:
        count = most_accepted(setting, epsilon)
        return measured([value_at(outcome, ACCEPTED, count, value) for outcome in found])

    return (
        scheme.title,
        *(over_runs(epsilon, ACCURACY) for epsilon in _EPSILONS),
        over_runs(_EPSILONS[-1], LOSS),
    )


def most_accepted(setting: Setting, epsilon: float) -> int:
    """How many accepted steps have a published ε of at most so much, as far as the runs go."""
    counts = range(1, setting.last_step + 1)
    return bisect_right(counts, epsilon, key=lambda count: published_epsilon(setting, count))


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper="sa-dpsgd",
        name="figure3",
        title="Loss and accuracy of the schemes against ε",
        about=(
            "The paper draws test loss and accuracy against its published ε on all three data sets. Here from the same "
            "runs as Tables 1 and 3, and once more against the proven ε of the candidates that were drawn, where the "
            "rejected ones are counted."
        ),
        jobs=_jobs,
        shown=_shown,
    ),
)
